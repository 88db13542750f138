"""The members of a collective as NCCL sees them: which members share GPU links, and which NICs they use.

In: a `Topology` and ranks in any order. Out: a `RankGroup`, which does not depend on that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.plan import Flow
from netmodel.topology import Topology
from netmodel.topology.links import LinkKind

_CONNECTION_STRIDE = 4096  # distance between connection numbers: more than there are channels


@dataclass(frozen=True)
class Rail:
    """A NIC and the member nearest to it, through which a channel enters and leaves a domain."""

    rank: int
    nic: int  # its place in the node
    slot: int  # its place in the domain


@dataclass(frozen=True)
class Hop:
    """One leg of a path: from one GPU to another; between domains through given NICs."""

    source: int
    target: int
    source_nic: int = -1
    target_nic: int = -1
    flow: int = 0


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

    def hops(self, source: int, target: int, source_rail: Rail, target_rail: Rail, connection: int) -> list[Hop]:
        """Between domains: over GPU links to the GPU nearest to the NIC (PXN), and from there over the network."""
        hops = []
        if source != source_rail.rank and self.topology.cluster.gpu_link != "pcie":
            hops.append(Hop(source, source_rail.rank))
            source = source_rail.rank
        hops.append(Hop(source, target, source_rail.nic, target_rail.nic, connection))
        return hops


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


def hop_paths(topology: Topology, hops: Sequence[Hop]) -> NDArray[np.int32]:
    """The links of hops: one row each, -1 after its end."""
    columns = np.array([(hop.source, hop.target, hop.source_nic, hop.target_nic, hop.flow) for hop in hops], np.int64)
    source, target, source_nic, target_nic, flow = columns.T
    return topology.paths(source, target, source_nic=source_nic, target_nic=target_nic, flow=flow)


def spread_paths(
    topology: Topology, hops: Sequence[Hop], loads: Sequence[float], channels: int = 1
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The links of hops, and the load of every row. A hop over the network has one row per hashed connection of every
    channel that it represents."""
    connections = hashed_connections(topology, channels)
    if connections == 1:
        return hop_paths(topology, hops), np.array(loads, np.float64)
    spread: list[Hop] = []
    shares: list[float] = []
    for hop, load in zip(hops, loads, strict=True):
        crosses = topology.domain_of(hop.source) != topology.domain_of(hop.target)
        ways = connections if crosses else 1
        spread += [replace(hop, flow=hop.flow + _CONNECTION_STRIDE * way) for way in range(ways)]
        shares += [load / ways] * ways
    return hop_paths(topology, spread), np.array(shares)


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
