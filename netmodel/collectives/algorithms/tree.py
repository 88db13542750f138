"""Trees between domains: the two binary trees of an all-reduce. Each carries half of the data, and a domain that
forwards data in one tree is a leaf of the other.

In: a `RankGroup`. Out: flows of tree, NVLS-tree and CollNet, and their latencies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.common import CollectiveSchedule, wire_bytes
from netmodel.collectives.algorithms.group import (
    Hops,
    RankGroup,
    RoutedHops,
    hop_paths,
    joined_hops,
    route_hops,
)
from netmodel.collectives.algorithms.nvls import switch_paths
from netmodel.collectives.plan import Flow

_CHANNELS_PER_NIC = 2  # as for rings


def tree_parents(domains: int) -> list[int]:
    """Parents in the first tree: odd places are leaves, the lowest set bit of a parent is twice its child's; -1:
    root."""
    parents = [-1]
    for place in range(1, domains):
        bit = place & -place
        parent = (place ^ bit) | (bit << 1)
        parents.append(parent if parent < domains else place ^ bit)
    return parents


def double_tree(domains: int) -> list[list[int]]:
    """Two trees as lists of parents. The second is the first mirrored, or shifted if odd, so leaves become inner
    nodes."""
    first = tree_parents(domains)
    second = [-1] * domains
    for place, parent in enumerate(first):
        if domains % 2 == 0:
            second[domains - 1 - place] = -1 if parent < 0 else domains - 1 - parent
        else:
            second[(place + 1) % domains] = -1 if parent < 0 else (parent + 1) % domains
    return [first, second]


def depth(parents: list[int]) -> int:
    """Steps from the deepest place to the root."""
    deepest = 0
    for place in range(len(parents)):
        steps = 0
        while parents[place] >= 0:
            place, steps = parents[place], steps + 1
        deepest = max(deepest, steps)
    return deepest


def _edges(group: RankGroup, parents: list[int], channel: int) -> Hops:
    """The hops between every domain's NIC and its parent's, both directions."""
    above = np.array(parents, np.int64)
    child = np.flatnonzero(above >= 0)
    above = above[child]
    return group.crossings(channel, _in_turn(child, above), _in_turn(above, child))


def _in_turn(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack((one, other), axis=1).ravel()


def _chains(group: RankGroup, channel: int) -> Hops:
    """The hops between neighbours of each domain, both directions."""
    order = group.orders(channel)
    inside = np.ones(len(order), bool)
    inside[np.cumsum(group.sizes) - 1] = False  # the last of a domain
    here = np.flatnonzero(inside)
    near, far = order[here], order[here + 1]
    return Hops.inside(_in_turn(near, far), _in_turn(far, near), channel)


def _routed(group: RankGroup, tree: int, parents: list[int], channel: int) -> tuple[RoutedHops, int]:
    """The chains inside domains and one of the trees between them; and how many of the hops are chains."""
    key = ("tree", tree, channel)
    chains = len(group.members) - len(group.domains)
    found = group.routed.get(key)
    if found is None:
        hops = _chains(group, channel)
        if group.rails:
            hops = joined_hops(hops, _edges(group, parents, channel))
        found = group.routed[key] = route_hops(group.topology, hops, _CHANNELS_PER_NIC)
    return found, 2 * chains


def tree_schedule(group: RankGroup, protocol: str) -> CollectiveSchedule:
    """All-reduce: up to the root and down again, with a chain inside each domain."""
    channels = len(group.rails[0]) if group.rails else len(group.rings[0])
    trees = double_tree(len(group.domains)) if group.rails else [[-1]]
    share = wire_bytes(protocol) / (channels * len(trees))
    flows, farthest_gpu, farthest_network = [], 0, 0
    for channel in range(channels):
        for tree, parents in enumerate(trees):
            routed, chains = _routed(group, tree, parents, channel)
            farthest_gpu = max(farthest_gpu, routed.farthest_ns(slice(0, chains)))
            farthest_network = max(farthest_network, routed.farthest_ns(slice(chains, len(routed.hop))))
            flows.append(routed.flow(share))
    inside, between = group.ranks_per_domain - 1, max(depth(parents) for parents in trees)
    return CollectiveSchedule(
        tuple(flows),
        2 * inside,
        2 * between,
        2 * (inside * farthest_gpu + between * farthest_network),
        fill_steps=2 * between,
        fill_channels=channels,
    )


def nvls_tree_schedule(group: RankGroup) -> CollectiveSchedule:
    """All-reduce: reduction in each domain's NVSwitch, trees between domains."""
    channels, trees = len(group.rails[0]), double_tree(len(group.domains))
    share = 1.0 / (channels * len(trees))
    inside, inside_loads = switch_paths(group, "all_reduce")
    flows, farthest = [], 0
    for channel in range(channels):
        for parents in trees:
            edges = route_hops(group.topology, _edges(group, parents, channel), _CHANNELS_PER_NIC)
            farthest = max(farthest, edges.farthest_ns(slice(0, len(edges.hop))))
            flows.append(_joined(edges.flow(share), inside, inside_loads * share))
    steps = max(depth(parents) for parents in trees)
    return CollectiveSchedule(
        tuple(flows), 1, 2 * steps, 2 * steps * farthest, fill_steps=2 * steps, fill_channels=channels
    )


def collnet_schedule(group: RankGroup, operation: str, *, chain: bool, nvls: bool = False) -> CollectiveSchedule:
    """Reduction in the network's switches: every NIC sends its share once and receives the result once. The path up to
    the switches and down again is modelled as the path to the next domain's NIC."""
    channels, domains = len(group.rails[0]), len(group.domains)
    flows, farthest = [], 0
    domain = np.arange(domains)
    for channel in range(channels):
        crossings = group.crossings(channel, domain, (domain + 1) % domains)
        crossing = route_hops(group.topology, crossings, _CHANNELS_PER_NIC)
        farthest = max(farthest, crossing.farthest_ns(slice(0, domains)))
        if nvls:
            rows, loads = switch_paths(group, operation)
            alone = np.repeat(np.repeat(group.sizes, group.sizes) == 1, 2)
            rows[alone] = -1
        elif chain:
            rows = hop_paths(group.topology, _chains(group, channel)._replace(flow=np.array(0)))
            loads = np.ones(len(rows))
        else:
            rows, loads = _exchange(group, 2.0 if operation == "all_reduce" else 1.0)
        flows.append(_joined(crossing.flow(1.0 / channels), rows, loads / channels))
    inside_steps = 1 if nvls else 2 * (group.ranks_per_domain - 1) if chain else 2 * min(1, group.ranks_per_domain - 1)
    return CollectiveSchedule(tuple(flows), inside_steps, 2, farthest)


def _exchange(group: RankGroup, both: float) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The paths between every two members of a domain, and their loads."""
    pairs = [(a, b, len(members)) for members in group.domains for a in members for b in members if a != b]
    source, target, count = np.array(pairs, np.int64).reshape(-1, 3).T
    return hop_paths(group.topology, Hops.inside(source, target)), both / count


def _joined(flow: Flow, rows: NDArray[np.int32], loads: NDArray[np.float64]) -> Flow:
    """A flow with more rows of links, each with its load."""
    used = rows >= 0
    links, place = np.unique(np.concatenate((flow.links, rows[used])), return_inverse=True)
    more = np.broadcast_to(loads[:, None], rows.shape)[used]
    return Flow(links.astype(np.int32), np.bincount(place, np.concatenate((flow.loads, more)), len(links)))
