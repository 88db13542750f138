"""The members of a collective as NCCL sees them: which members share GPU links, and which NICs they use.

In: a `Topology` and ranks in any order. Out: a `RankGroup`, which does not depend on that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.plan import Flow
from netmodel.topology import Topology
from netmodel.topology.links import LinkKind

Int64s = NDArray[np.int64]

_CONNECTION_STRIDE = 4096  # distance between connection numbers: more than there are channels


@dataclass(frozen=True)
class Rail:
    """A NIC and the member nearest to it, through which a channel enters and leaves a domain."""

    rank: int
    nic: int  # its place in the node
    slot: int  # its place in the domain


class Hops(NamedTuple):
    """Legs of paths: each from one GPU to another; between domains through given NICs."""

    source: Int64s
    target: Int64s
    source_nic: Int64s  # -1: the nearest
    target_nic: Int64s
    flow: Int64s

    @staticmethod
    def inside(source: Int64s, target: Int64s, flow: int = 0) -> Hops:
        """Hops inside domains."""
        nearest = np.full(len(source), -1, np.int64)
        return Hops(source, target, nearest, nearest, np.full(len(source), flow, np.int64))


@dataclass(frozen=True, eq=False)
class RankGroup:
    """Members grouped by domain. A domain is a node, or a rack whose nodes share an NVSwitch."""

    topology: Topology
    members: tuple[int, ...]  # ascending
    domains: tuple[tuple[int, ...], ...]
    rails: tuple[
        tuple[Rail, ...], ...
    ]  # per domain, as many as the domain with the fewest rails has; empty if there is one domain
    rings: tuple[tuple[tuple[int, ...], ...], ...]  # per domain: orders in which its members can form rings
    routed: dict[object, RoutedHops] = field(default_factory=dict)  # kept by the algorithms: routes serve all protocols

    @property
    def ranks_per_domain(self) -> int:
        """Members of the largest domain."""
        return max(len(domain) for domain in self.domains)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Numbers of members, domains, members of the largest domain, and rails."""
        return len(self.members), len(self.domains), self.ranks_per_domain, len(self.rails[0]) if self.rails else 0

    def order(self, domain: int, channel: int) -> tuple[int, ...]:
        """A domain's members in the order in which a channel visits them, starting nearest to its NIC."""
        rings = self.rings[domain]
        ring = rings[channel % len(rings)]
        first = ring.index(self.rails[domain][channel].rank) if self.rails else 0
        return ring[first:] + ring[:first]

    def orders(self, channel: int) -> Int64s:
        """`order` of all domains, one after the other."""
        if channel not in self._orders:
            orders = (self.order(domain, channel) for domain in range(len(self.domains)))
            self._orders[channel] = np.fromiter(chain.from_iterable(orders), np.int64, len(self.members))
        return self._orders[channel]

    @cached_property
    def _orders(self) -> dict[int, Int64s]:
        return {}

    @cached_property
    def sizes(self) -> Int64s:
        """The number of members of each domain."""
        return np.array([len(domain) for domain in self.domains], np.int64)

    @cached_property
    def rail_ranks(self) -> Int64s:
        """[domain, rail] -> the rank of `rails`."""
        return np.array([[rail.rank for rail in rails] for rails in self.rails], np.int64)

    @cached_property
    def rail_nics(self) -> Int64s:
        """[domain, rail] -> the NIC of `rails`."""
        return np.array([[rail.nic for rail in rails] for rails in self.rails], np.int64)

    def crossings(self, channel: int, here: Int64s, there: Int64s) -> Hops:
        """Hops over the network from the rail of one domain to that of another, for each pair of domains."""
        ranks, nics = self.rail_ranks[:, channel], self.rail_nics[:, channel]
        return Hops(ranks[here], ranks[there], nics[here], nics[there], np.full(len(here), channel, np.int64))


def make_group(topology: Topology, members: Iterable[int], most_rails: int = 0) -> RankGroup:
    """The group of these ranks, with at most `most_rails` rails (0: all)."""
    ranks = tuple(sorted(members))
    by_domain: dict[int, list[int]] = {}
    for rank in ranks:
        by_domain.setdefault(topology.domain_of(rank), []).append(rank)
    domains = tuple(tuple(domain) for domain in by_domain.values())
    rails: tuple[tuple[Rail, ...], ...] = ()
    if len(domains) > 1:
        rails = _common_rails([_rails_of(topology, domain) for domain in domains])
        rails = tuple(of_domain[: most_rails or None] for of_domain in rails)
    shapes: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
    rings = []
    for domain in domains:
        first = topology.node_of(domain[0]) * topology.cluster.gpus_per_node
        shape = tuple(rank - first for rank in domain)
        if shape not in shapes or topology.lost.any():
            shapes[shape] = tuple(tuple(rank - first for rank in ring) for ring in _gpu_rings(topology, domain))
        rings.append(tuple(tuple(first + place for place in ring) for ring in shapes[shape]))
    return RankGroup(topology, ranks, domains, rails, tuple(rings))


def _rails_of(topology: Topology, domain: Sequence[int]) -> list[Rail]:
    found: dict[int, Rail] = {}
    for rank in domain:
        for nic in topology.nics_of(rank):
            slot = rail_slot(topology, rank, nic)
            found.setdefault(slot, Rail(rank, nic, slot))
    return [found[slot] for slot in sorted(found)]


def hashed_connections(topology: Topology, channels: int = 1) -> int:
    """The number of connections between two NICs that switches hash to different paths."""
    fabric = topology.cluster.fabric
    return fabric.connections * channels if fabric.routing == "ecmp" else 1


def rail_slot(topology: Topology, rank: int, nic: int) -> int:
    """The slot of a NIC within its domain. NICs of the same slot are on one rail."""
    node = topology.node_of(rank) % topology.cluster.gpu_link_nodes
    return node * topology.cluster.nics_per_node + nic


def _common_rails(of_domains: list[list[Rail]]) -> tuple[tuple[Rail, ...], ...]:
    """Reduce every domain to the smallest number of rails; choose the same NICs where all domains have them."""
    fewest = min(len(rails) for rails in of_domains)
    common = set.intersection(*({rail.slot for rail in rails} for rails in of_domains))
    chosen = []
    for rails in of_domains:
        shared = [rail for rail in rails if rail.slot in common]
        chosen.append(tuple((shared if len(shared) >= fewest else rails)[:fewest]))
    return tuple(chosen)


def _gpu_rings(topology: Topology, domain: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Behind a switch any order will do. In a mesh, rings divide the links among themselves, each in both
    directions."""
    if topology.cluster.gpu_link != "nvlink-mesh" or len(domain) < 3:
        return [domain]
    free: dict[tuple[int, int], float] = {}
    for source in domain:
        for target in domain:
            path = topology.path(source, target) if source != target else ()
            if len(path) == 1 and topology.kind[path[0]] == LinkKind.NVLINK:
                free[source, target] = float(topology.rate[path[0]])
    if not free:
        return [domain]
    unit = min(free.values())
    rings: list[tuple[int, ...]] = []
    while ring := _hamiltonian_ring(domain, free, unit):
        rings += [ring, (ring[0], *reversed(ring[1:]))]
        for source, target in zip(ring, ring[1:] + ring[:1], strict=True):
            free[source, target] -= unit
            free[target, source] -= unit
    return rings or [domain, domain[::-1]]


def _hamiltonian_ring(domain: tuple[int, ...], free: dict[tuple[int, int], float], unit: float) -> tuple[int, ...]:
    """A ring over unused links, preferring pairs with most of them left; empty if there is none."""

    def extend(way: tuple[int, ...]) -> tuple[int, ...]:
        if len(way) == len(domain):
            return way if free.get((way[-1], way[0]), 0.0) >= unit else ()
        nexts = [rank for rank in domain if rank not in way and free.get((way[-1], rank), 0.0) >= unit]
        for rank in sorted(nexts, key=lambda rank: (-free[way[-1], rank], rank)):
            if found := extend((*way, rank)):
                return found
        return ()

    return extend(domain[:1])


@dataclass(frozen=True, eq=False)
class RoutedHops:
    """The links of hops. A hop has one row, or one for each connection that switches hash to a path of its own."""

    links: NDArray[np.int32]  # the distinct ones
    place: NDArray[np.intp]  # for each link of each row, its position in `links`
    row: NDArray[np.intp]  # for each link of each row, the row
    ways: Int64s  # for each row, the number of rows that share the load of its hop
    hop: NDArray[np.intp]  # for each row
    latency_ns: Int64s  # for each row: of its cables and switches

    def flow(self, load: Int64s | NDArray[np.float64] | float) -> Flow:
        """One flow over all hops. `load`: bytes that each hop carries per byte of the collective."""
        of_rows = np.broadcast_to(np.asarray(load, np.float64), (int(self.hop[-1]) + 1,))[self.hop] / self.ways
        loads = np.bincount(self.place, of_rows[self.row], len(self.links))
        return Flow(self.links, loads.astype(np.float64))

    @property
    def total_latency_ns(self) -> int:
        """The sum over all hops, each on the first of its ways."""
        first = np.diff(self.hop, prepend=-1) > 0
        return int(self.latency_ns[first].sum())

    def farthest_ns(self, hops: slice) -> int:
        """The largest latency of some hops."""
        return int(self.latency_ns[(self.hop >= hops.start) & (self.hop < hops.stop)].max(initial=0))


def route_hops(topology: Topology, hops: Hops, channels: int = 1) -> RoutedHops:
    """The links of hops, each of which represents `channels` channels."""
    connections = hashed_connections(topology, channels)
    hop = np.arange(len(hops.source))
    ways = np.ones(len(hop), np.int64)
    if connections > 1:
        per_domain = topology.cluster.gpus_per_node * topology.cluster.gpu_link_nodes
        crosses = hops.source // per_domain != hops.target // per_domain
        ways = np.where(crosses, connections, 1)
        hop = np.repeat(hop, ways)
        way = np.arange(len(hop)) - np.repeat(np.cumsum(ways) - ways, ways)
        hops = Hops(*(column[hop] for column in hops))
        hops = hops._replace(flow=hops.flow + _CONNECTION_STRIDE * way)
        ways = ways[hop]
    paths = hop_paths(topology, hops)
    used = paths >= 0
    links, place = np.unique(paths[used], return_inverse=True)
    return RoutedHops(
        links.astype(np.int32), place.reshape(-1), np.nonzero(used)[0], ways, hop, latencies(topology, paths)
    )


def hop_paths(topology: Topology, hops: Hops) -> NDArray[np.int32]:
    """The links of hops: one row each, -1 after its end."""
    source, target, source_nic, target_nic, flow = hops
    return topology.paths(source, target, source_nic=source_nic, target_nic=target_nic, flow=flow)


def joined_hops(*parts: Hops) -> Hops:
    """The hops of all parts, one after the other."""
    return Hops(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def flow_over(paths: NDArray[np.int32], loads: NDArray[np.float64] | float, limit: float = float("inf")) -> Flow:
    """One flow over several paths, whose rows carry `loads` bytes per byte of the collective."""
    rows = np.broadcast_to(np.reshape(np.asarray(loads, np.float64), (-1, 1)), paths.shape)
    used = paths >= 0
    links, inverse = np.unique(paths[used], return_inverse=True)
    return Flow(links.astype(np.int32), np.bincount(inverse, rows[used], len(links)).astype(np.float64), limit)


def latencies(topology: Topology, paths: NDArray[np.int32]) -> NDArray[np.int64]:
    """The latency of cables and switches on each row, in ns."""
    sums: NDArray[np.int64] = np.where(paths >= 0, topology.latency[np.maximum(paths, 0)], 0).sum(axis=1)
    return sums
