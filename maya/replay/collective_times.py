"""How long collectives and send/recv take on a cluster's network, by the arguments of the NCCL call.

In: a cluster, NCCL's settings, the placement of the job's ranks, and calls from traces or from running ranks. Out:
integer nanoseconds from the analytic network, or a `netmodel.Collective` for the flow network. A running job and its
replay use the same code, so both have the same times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from maya.replay.record_kinds import P2P_CALLS
from netmodel.cluster import Cluster
from netmodel.collectives.algorithms.p2p_routes import lone_transfer_costs
from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, Transfer
from netmodel.collectives.nccl_log import CommunicatorLog, LogLine
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.topology import Topology, build_topology

BUFFERED_BYTES = 4 << 20  # NCCL's buffer: a send whose data fit into it does not wait for the recv

# Element types by their names in traces: bytes, and the name in netmodel.
DTYPES = {
    "int8": (1, "int8"),
    "uint8": (1, "uint8"),
    "int32": (4, "int32"),
    "uint32": (4, "uint32"),
    "int64": (8, "int64"),
    "uint64": (8, "uint64"),
    "fp16": (2, "float16"),
    "fp32": (4, "float32"),
    "fp64": (8, "float64"),
    "bf16": (2, "bfloat16"),
    "fp8_e4m3": (1, "float8_e4m3fn"),
    "fp8_e5m2": (1, "float8_e5m2"),
}

# The operation in netmodel, and whether NCCL's count is for each member.
_OPERATIONS = {
    "ncclAllReduce": ("all_reduce", False),
    "ncclReduce": ("reduce", False),
    "ncclBroadcast": ("broadcast", False),
    "ncclBcast": ("broadcast", False),
    "ncclAllGather": ("all_gather", True),
    "ncclReduceScatter": ("reduce_scatter", True),
    "ncclAlltoAll": ("all_to_all", True),
}
_ROOTED = ("ncclReduce", "ncclBroadcast", "ncclBcast", "ncclGather", "ncclScatter")
CALLS = frozenset((*_OPERATIONS, *_ROOTED, *P2P_CALLS))
_TREES = ("fat-tree", "rail-optimised")
_MOST_KEPT = 1 << 18  # cached times; sends of ever new sizes would need ever more


class CollectiveTimes:
    """Times on one cluster for a job that uses the first `ranks_per_node` GPUs of every node."""

    def __init__(
        self, cluster: Cluster, settings: NcclSettings | None, world_size: int, ranks_per_node: int | None = None
    ) -> None:
        per_node = ranks_per_node or cluster.gpus_per_node
        nodes = -(-world_size // per_node)
        self.cluster = cluster
        self.settings = settings or NcclSettings()
        self.topology: Topology = build_topology(cluster, nodes * cluster.gpus_per_node)
        self.network = AnalyticNetwork(self.topology, self.settings)
        self._gpus = _gpus(world_size, per_node, cluster.gpus_per_node)
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._logs: dict[tuple[int, ...], CommunicatorLog] = {}
        self._by_id: dict[tuple[str, int, str, int, int], tuple[tuple[int, ...], int]] = {}
        self._alone: dict[int, tuple[int, ...]] = {}
        self._groups = _Groups(self.topology)
        self._by_form: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        self._firsts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._p2p: dict[tuple[int, int, int], int] = {}
        self._pairs = _Pairs(self.topology)
        self._by_pair: dict[tuple[int, int, int], int] = {}

    @property
    def origin(self) -> str:
        """Origin of the network's parameters: "fitted", "transferred" or "datasheet"."""
        return self.cluster.parameters.origin

    def collective_ns(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> int:
        """The duration of a collective once all members have arrived. `members` are ranks of the job in the order of
        the communicator, `root` a place among them. Fastest if callers pass the same tuple of members every time."""
        key = (call, count, dtype, id(members), root)
        known = self._by_id.get(key)
        if known is None:
            if len(self._by_id) >= _MOST_KEPT:
                self._by_id.clear()
            first = self._first_like(members)
            if first is members:
                ns = self.network.estimate(self.collective(call, count, dtype, members, root)).ns
            else:
                ns = self.collective_ns(call, count, dtype, first, root)
            known = self._by_id[key] = (members, ns)  # keep the tuple, so that its id stays unique
        return known[1]

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int:
        """The duration of a send/recv from one rank of the job to another, or to itself."""
        key = (sender, receiver, size)
        ns = self._p2p.get(key)
        if ns is None:
            if len(self._p2p) >= _MOST_KEPT:
                self._p2p.clear()
            alike = (*self._pairs.alike(self._gpus[sender], self._gpus[receiver]), size)
            ns = self._by_pair.get(alike)
            if ns is None:
                ns = self._by_pair[alike] = self.network.estimate(_p2p(*alike)).ns
            self._p2p[key] = ns
        return ns

    def p2p_times(self, senders: Sequence[int], receivers: Sequence[int], size: int) -> list[int]:
        """`p2p_ns` for many pairs of different ranks."""
        if not self._pairs.are_hashed:
            return [self.p2p_ns(*ends, size) for ends in zip(senders, receivers, strict=True)]
        gpus = np.array(self._gpus, dtype=np.int64)
        source, target = gpus[list(senders)], gpus[list(receivers)]
        _, first, alike = np.unique(
            lone_transfer_costs(self.topology, source, target), axis=0, return_index=True, return_inverse=True
        )
        times = [self.p2p_ns(senders[pair], receivers[pair], size) for pair in first.tolist()]
        return [times[kind] for kind in alike.reshape(-1).tolist()]

    def alone_ns(self, signature: str, rank: int) -> int:
        """The duration of a call on a communicator with one member, by its signature in the trace."""
        fields = json.loads(signature)
        call, count, dtype = fields["call"], int(fields["count"]), fields["dtype"]
        if call not in CALLS or dtype not in DTYPES:
            raise ValueError(
                f"the trace of rank {rank} is damaged: it has a call {call!r} of {dtype!r}; run the job again"
            )
        if call in P2P_CALLS:
            return self.p2p_ns(rank, rank, count * DTYPES[dtype][0])
        return self.collective_ns(call, count, dtype, self._alone.setdefault(rank, (rank,)))

    def collective(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> Collective:
        """A collective call, for the network model."""
        item_bytes, torch_dtype = DTYPES[dtype]
        places = self._places(members)
        root = root if call in _ROOTED else 0
        size = count * item_bytes
        if call in ("ncclGather", "ncclScatter"):
            return _fan(places, size, root, gathers=call == "ncclGather")
        operation, for_each = _OPERATIONS[call]
        if for_each:
            size *= len(members)
        return Collective(operation, size, places, root, dtype=torch_dtype)

    def communicator_log(self, members: tuple[int, ...], member: int, handle: int) -> list[LogLine]:
        """What NCCL would log about a communicator, for one of its members."""
        if members not in self._logs:
            self._logs[members] = CommunicatorLog(self.network, self._places(members))
        return self._logs[members].lines(member, handle)

    def p2p(self, sender: int, receiver: int, size: int) -> Collective:
        """A send/recv, for the network model."""
        return _p2p(self._gpus[sender], self._gpus[receiver], size)

    def _places(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The members' GPUs in the topology; the same object for the same members."""
        places = self._members.get(members)
        if places is None:
            places = self._members[members] = self._distinct(members)
        return places

    def _first_like(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The first members that collectives take as long with as with these."""
        known = self._firsts.get(id(members))
        if known is None:
            if len(self._firsts) >= _MOST_KEPT:
                self._firsts.clear()
            form = self._groups.form(self._places(members))
            first = members if form is None else self._by_form.setdefault(form, members)
            known = self._firsts[id(members)] = (members, first)  # keep the tuple, so that its id stays unique
        return known[1]

    def _distinct(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """A rank that is several members of a communicator drives as many GPUs: its own, and the next free ones of its
        node."""
        places: list[int] = []
        if len(set(members)) == len(members):
            return tuple(self._gpus[rank] for rank in members)
        per_node = self.cluster.gpus_per_node
        for rank in members:
            node, first = divmod(self._gpus[rank], per_node)
            near = (node * per_node + (first + further) % per_node for further in range(per_node))
            places.append(next((place for place in near if place not in places), self._gpus[rank]))
        return tuple(places)


def _p2p(source: int, target: int, size: int) -> Collective:
    """A send/recv from one GPU to another, or to itself."""
    if source == target:
        return Collective("send_recv", size, (source,))
    return Collective("send_recv", size, (source, target), transfers=(Transfer(0, 1, size),))


class _Groups:
    """Groups of GPUs with the same times of collectives on an otherwise idle network. A large job has thousands of
    communicators, of which few differ.

    Without faults all domains are wired alike, and a path inside one depends on the places of its ends there. So does
    a path to a NIC. Between switches, adaptive routing has merged what is parallel, so that a tree has one path between
    two leaves: none on the same leaf, else up to the upper switch that both have in common. All links of a level have
    the same rate and latency. Two groups whose domains, in ascending order, have members in the same places, and share
    leaves and upper switches in the same way, hence load links of the same rates with the same bytes, in the same order
    of additions.
    """

    def __init__(self, topology: Topology) -> None:
        cluster, routes = topology.cluster, topology.routes
        self._per_node = cluster.gpus_per_node
        self._per_domain = routes.gpus_per_domain
        self._switches = routes.nic_switch
        # A switch's neighbours start with the only one of a leaf in such a tree, or with itself if there is none.
        self._above = routes.fabric.neighbours[:, 0]
        self._has_one_path = cluster.fabric.kind in _TREES and cluster.fabric.routing == "adaptive"
        # GPUs of a domain that no path inside it joins reach each other through switches.
        joined = routes.local[0].gpu_gpu_choices > 0
        np.fill_diagonal(joined, val=True)
        self._are_alike = not cluster.faults and bool(joined.all())

    def form(self, gpus: tuple[int, ...]) -> tuple[bytes, ...] | None:
        """Equal for groups, in the order of the communicator, that have the same times. None if nothing is known to
        be like this group."""
        if not self._are_alike:
            return None
        domain, place = np.divmod(np.array(gpus, dtype=np.int64), self._per_domain)
        domains, which = np.unique(domain, return_inverse=True)
        if len(domains) == 1:
            return (place.tobytes(),)
        nodes = np.unique(np.array(gpus, dtype=np.int64) // self._per_node)
        leaves = self._switches[nodes].ravel()
        if not self._has_one_path and (leaves != leaves[0]).any():
            return None  # switches choose paths by the numbers of the ends
        return place.tobytes(), which.tobytes(), _renumbered(leaves), _renumbered(self._above[leaves])


def _renumbered(switches: NDArray[np.int32]) -> bytes:
    """The same for lists of switches that are equal in the same places."""
    _, first, which = np.unique(switches, return_index=True, return_inverse=True)
    return first[which].tobytes()


class _Pairs:
    """Pairs of GPUs with the same send/recv times on an otherwise idle network. An all-to-all of tokens makes sends
    between all pairs, of which few differ."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        cluster = topology.cluster
        self._node = cluster.gpus_per_node
        # In a tree without faults all nodes are alike, unless GPU links join several. Where switches hash several
        # connections of a transfer to paths, collisions are random and differ for every pair.
        self.are_hashed = cluster.fabric.connections > 1 and cluster.fabric.routing != "adaptive"
        alone = cluster.gpu_link_nodes == 1
        self._are_alike = cluster.fabric.kind in _TREES and not cluster.faults and alone and not self.are_hashed
        self._known_hops: dict[tuple[int, int], int] = {}  # by switches
        self._known_first: dict[int, tuple[int, int]] = {}  # by hops

    def alike(self, source: int, target: int) -> tuple[int, int]:
        """The first pair with the same times as this one."""
        if not self._are_alike:
            return source, target
        (one, source), (other, target) = divmod(source, self._node), divmod(target, self._node)
        if one == other:
            return source, target
        one, other = self._first(self._hops(one, other))
        return one * self._node + source, other * self._node + target

    def _hops(self, one: int, other: int) -> int:
        """The number of links between the first GPUs of two nodes."""
        key = self._switches[one], self._switches[other]
        hops = self._known_hops.get(key)
        if hops is None:
            hops = len([link for link in self._topology.path(one * self._node, other * self._node) if link >= 0])
            self._known_hops[key] = hops
        return hops

    @cached_property
    def _switches(self) -> list[int]:
        """For each node, the switch of its first GPU's nearest NIC. In a tree, whose cables cost the same, two switches
        determine the number of links between them; otherwise every node counts as a switch of its own."""
        routes = self._topology.routes
        nodes = np.arange(self._topology.gpus // self._node)
        costs = routes.fabric.costs[routes.fabric.cables > 0]
        if len(costs) and (costs != costs[0]).any():
            return nodes.tolist()
        switches: list[int] = routes.nic_switch[nodes, routes.nics[nodes * self._node, 0]].tolist()
        return switches

    def _first(self, hops: int) -> tuple[int, int]:
        """The first two nodes at a distance. It is asked for only where there are such nodes."""
        found = self._known_first.get(hops)
        if found is None:
            nodes = range(len(self._switches))
            found = self._known_first[hops] = next(
                (one, other) for one in nodes for other in nodes if one != other and self._hops(one, other) == hops
            )
        return found


def _gpus(world_size: int, per_node: int, gpus_per_node: int) -> list[int]:
    """For every rank of the job, its GPU. If a node has more ranks than GPUs, ranks share them: LOCAL_RANK modulo the
    number of GPUs."""
    return [rank // per_node * gpus_per_node + rank % per_node % gpus_per_node for rank in range(world_size)]


def _fan(members: tuple[int, ...], size: int, root: int, *, gathers: bool) -> Collective:
    """Sends from all other members to the root, or from the root to all others."""
    others = [place for place in range(len(members)) if place != root]
    if not others:
        return Collective("send_recv", size, members)
    transfers = tuple(Transfer(place, root, size) if gathers else Transfer(root, place, size) for place in others)
    return Collective("send_recv", size * len(transfers), members, transfers=transfers)
