"""The lines that NCCL would log about a communicator: its rings, trees, transports and the tuner's choices.

In: an `AnalyticNetwork` and the members of a communicator. Out: lines of one member, as NCCL writes them with
NCCL_DEBUG=INFO, without their prefix. They state what the model computes with, and leave out what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from netmodel.collectives import tuner
from netmodel.collectives.algorithms import p2p
from netmodel.collectives.algorithms.tree import double_tree
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.nccl_settings import NcclSettingsError

_ALGORITHMS = {
    "tree": "Tree",
    "ring": "Ring",
    "collnetdirect": "CollNetDirect",
    "collnetchain": "CollNetChain",
    "nvls": "NVLS",
    "nvlstree": "NVLSTree",
    "pat": "PAT",
}
_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
_DTYPE = "float32"


class LogLine(NamedTuple):
    """One line; NCCL_DEBUG_SUBSYS chooses lines by their subsystem."""

    subsystem: str
    text: str


class CommunicatorLog:
    """The lines about one communicator."""

    def __init__(self, network: AnalyticNetwork, places: Sequence[int]) -> None:
        """`places`: the GPU of each member in the topology, in the order of the communicator."""
        self._network = network
        self._topology = network.topology
        self._cluster = network.topology.cluster
        self._places = tuple(places)
        self._group = network.group(tuple(sorted(set(places))))
        self._member_of = {place: member for member, place in enumerate(places)}

    def lines(self, member: int, handle: int) -> list[LogLine]:
        """The lines of one member. `handle`: the address of its communicator."""
        found = [LogLine("INIT", self._size(member, handle))]
        if 1 < len(self._group.members) == len(self._places):
            if self._group.rails:
                found.append(LogLine("INIT", f"Using network {self._cluster.nccl_network}"))
            if member == 0:
                found += self._rings()
            found.append(LogLine("INIT", self._trees(member)))
            found += self._connections(member)
            found.append(LogLine("INIT", self._channel_counts()))
            if member == 0:
                found += self._choices()
        return found

    # ---- sizes ----

    def _size(self, member: int, handle: int) -> str:
        node_of = self._topology.node_of
        nodes = [node_of(place) for place in self._places]
        local = [other for other, node in enumerate(nodes) if node == nodes[member]]
        domains = [self._topology.domain_of(place) for place in self._places]
        spans = len(local) < domains.count(domains[member])  # GPU links between nodes
        return (
            f"comm 0x{handle:x} rank {member} nRanks {len(nodes)} nNodes {len(set(nodes))} localRanks {len(local)} "
            f"localRank {local.index(member)} MNNVL {int(spans)}"
        )

    def _candidates(self, operation: str) -> list[tuner.Choice]:
        network = self._network
        return tuner.candidate_choices(self._group, network.parameters.generation, operation, network.settings, _DTYPE)

    @cached_property
    def _channels(self) -> int:
        """Channels of rings and trees."""
        counts = [choice.channels for choice in self._candidates("all_reduce") if choice.algorithm in ("ring", "tree")]
        return max(counts, default=self._distinct)

    @property
    def _distinct(self) -> int:
        """Rings that differ; further channels use them again."""
        return len(self._group.rails[0]) if self._group.rails else len(self._group.rings[0])

    def _channel_counts(self) -> str:
        nvls = max((c.channels for c in self._candidates("all_reduce") if c.algorithm.startswith("nvls")), default=0)
        most = self._network.settings.max_channels or p2p.CHANNELS
        per_peer = min(p2p.channels_per_peer(len(self._places), 0), most)
        return (
            f"{self._channels} coll channels, {nvls} nvls channels, {min(p2p.CHANNELS, most)} p2p channels, "
            f"{per_peer} p2p channels per peer"
        )

    # ---- rings ----

    @cached_property
    def _orders(self) -> list[list[int]]:
        """For each distinct ring, the members in its order."""
        rings = (self._group.orders(ring).tolist() for ring in range(self._distinct))
        return [[self._member_of[place] for place in ring] for ring in rings]

    @cached_property
    def _positions(self) -> list[dict[int, int]]:
        return [{member: position for position, member in enumerate(order)} for order in self._orders]

    def _rings(self) -> Iterator[LogLine]:
        width = len(str(len(self._places) - 1))
        for channel in range(self._channels):
            order = self._orders[channel % self._distinct]
            first = order.index(0)
            text = " ".join(f"{member:>{width}}" for member in order[first:] + order[:first])
            yield LogLine("INIT", f"Channel {channel:02}/{self._channels:02} : {text}")

    def _connections(self, member: int) -> Iterator[LogLine]:
        for channel in range(self._channels):
            ring = channel % self._distinct
            order, position = self._orders[ring], self._positions[ring][member]
            before, after = order[position - 1], order[(position + 1) % len(order)]
            begin = f"Channel {channel:02}/0 : "
            if self._domain(before) != self._domain(member):
                nic = self._group.rails[self._domain(member)][ring].nic
                way = f" [receive] via {self._network_transport(nic)}"
                yield LogLine("INIT", f"{begin}{self._pair(before, member)}{way}")
            yield LogLine("INIT", f"{begin}{self._pair(member, after)}{self._way(member, after, ring)}")

    def _pair(self, source: int, target: int) -> str:
        per_node = self._cluster.gpus_per_node
        return " -> ".join(f"{member}[{self._places[member] % per_node}]" for member in (source, target))

    def _way(self, source: int, target: int, ring: int) -> str:
        """How one member sends to the next: over GPU links, or through a NIC, perhaps near another member (PXN)."""
        here = self._domain(source)
        if here == self._domain(target):
            is_near = self._topology.node_of(self._places[source]) == self._topology.node_of(self._places[target])
            return " via P2P/CUMEM" if is_near else " via P2P/MNNVL"
        rail = self._group.rails[here][ring]
        relayed = self._cluster.gpu_link != "pcie" and rail.rank != self._places[source]
        nic = f"{rail.nic}({self._member_of[rail.rank]})" if relayed else rail.nic
        return f" [send] via {self._network_transport(nic)}"

    def _network_transport(self, nic: int | str) -> str:
        direct = "" if self._cluster.nccl_network == "Socket" else "/GDRDMA"
        return f"NET/{self._cluster.nccl_network}/{nic}{direct}"

    def _domain(self, member: int) -> int:
        """The place of a member's domain in the group."""
        return self._index_of_domain[self._topology.domain_of(self._places[member])]

    @cached_property
    def _index_of_domain(self) -> dict[int, int]:
        domains = self._group.domains
        return {self._topology.domain_of(places[0]): index for index, places in enumerate(domains)}

    # ---- trees ----

    def _trees(self, member: int) -> str:
        """For each channel: children->member->parent. There is a chain in each domain, and trees between domains."""
        here = self._domain(member)
        trees = double_tree(len(self._group.domains)) if self._group.rails else [[-1]]
        parts = []
        for channel in range(self._channels):
            ring, parents = channel % self._distinct, trees[channel // self._distinct % len(trees)]
            chain = [self._member_of[place] for place in self._group.order(here, ring)]
            position = chain.index(member)
            below = chain[position + 1 : position + 2]
            parent = chain[position - 1] if position else -1
            if position == 0:
                below += [self._head(child, ring) for child, above in enumerate(parents) if above == here]
                parent = self._head(parents[here], ring) if parents[here] >= 0 else -1
            children = "/".join(map(str, [*below, -1, -1, -1][:3]))
            parts.append(f"[{channel}] {children}->{member}->{parent}")
        return "Trees " + " ".join(parts)

    def _head(self, domain: int, ring: int) -> int:
        return self._member_of[self._group.order(domain, ring)[0]]

    # ---- the tuner ----

    def _choices(self) -> Iterator[LogLine]:
        for operation, name in _FUNCTIONS.items():
            try:
                choices = self._network.choices(self._group, operation, _DTYPE)
            except NcclSettingsError:  # no way to carry it out: a call would fail, the communicator is not concerned
                continue
            parts = []
            for start, choice in choices:
                way = f"{_ALGORITHMS[choice.algorithm]}/{_PROTOCOLS[choice.protocol]}"
                parts.append(f"from {start} B {way} on {choice.channels} channels")
            yield LogLine("INIT", f"{name}: {', '.join(parts)}")
