"""Trees between domains: the two binary trees of an all-reduce. Each carries half of the data, and a domain that
forwards data in one tree is a leaf of the other.

In: a `RankGroup`. Out: flows of tree, NVLS-tree and CollNet, and their latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.common import CollectiveSchedule, wire_bytes
from netmodel.collectives.algorithms.group import Hop, RankGroup, flow_over, hop_paths, latencies, spread_paths
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


def _edges(group: RankGroup, parents: list[int], channel: int) -> list[Hop]:
    """The hops between every domain's NIC and its parent's, both directions."""
    hops = []
    for place, parent in enumerate(parents):
        if parent >= 0:
            child, above = group.rails[place][channel], group.rails[parent][channel]
            hops.append(Hop(child.rank, above.rank, child.nic, above.nic, channel))
            hops.append(Hop(above.rank, child.rank, above.nic, child.nic, channel))
    return hops


def tree_schedule(group: RankGroup, protocol: str) -> CollectiveSchedule:
    """All-reduce: up to the root and down again, with a chain inside each domain."""
    channels = len(group.rails[0]) if group.rails else len(group.rings[0])
    trees = double_tree(len(group.domains)) if group.rails else [[-1]]
    share = wire_bytes(protocol) / (channels * len(trees))
    flows, farthest_gpu, farthest_network = [], 0, 0
    for channel in range(channels):
        chains: list[Hop] = []
        for domain in range(len(group.domains)):
            order = group.order(domain, channel)
            for a, b in pairwise(order):
                chains += [Hop(a, b, flow=channel), Hop(b, a, flow=channel)]
        for parents in trees:
            parts = []
            if chains:
                parts.append(hop_paths(group.topology, chains))
                farthest_gpu = max(farthest_gpu, int(latencies(group.topology, parts[-1]).max()))
            loads: list[NDArray[np.float64] | float] = [share] * len(parts)
            if edges := _edges(group, parents, channel):
                paths, rows = spread_paths(group.topology, edges, [share] * len(edges), _CHANNELS_PER_NIC)
                parts.append(paths)
                loads.append(rows)
                farthest_network = max(farthest_network, int(latencies(group.topology, paths).max()))
            flows.append(_joined(parts, loads))
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
    inside = [switch_paths(group, domain, "all_reduce") for domain in range(len(group.domains))]
    flows, farthest = [], 0
    for channel in range(channels):
        for parents in trees:
            edges = _edges(group, parents, channel)
            crossing, rows = spread_paths(group.topology, edges, [share] * len(edges), _CHANNELS_PER_NIC)
            farthest = max(farthest, int(latencies(group.topology, crossing).max()))
            parts = [crossing, *(paths for paths, _ in inside)]
            flows.append(_joined(parts, [rows, *(loads * share for _, loads in inside)]))
    steps = max(depth(parents) for parents in trees)
    return CollectiveSchedule(
        tuple(flows), 1, 2 * steps, 2 * steps * farthest, fill_steps=2 * steps, fill_channels=channels
    )


def collnet_schedule(group: RankGroup, operation: str, *, chain: bool, nvls: bool = False) -> CollectiveSchedule:
    """Reduction in the network's switches: every NIC sends its share once and receives the result once. The path up to
    the switches and down again is modelled as the path to the next domain's NIC."""
    channels, domains = len(group.rails[0]), len(group.domains)
    flows, farthest = [], 0
    for channel in range(channels):
        crossings = []
        for domain in range(domains):
            here, there = group.rails[domain][channel], group.rails[(domain + 1) % domains][channel]
            crossings.append(Hop(here.rank, there.rank, here.nic, there.nic, channel))
        share = [1.0 / channels] * len(crossings)
        crossing, rows = spread_paths(group.topology, crossings, share, _CHANNELS_PER_NIC)
        parts = [crossing]
        loads: list[NDArray[np.float64] | float] = [rows]
        farthest = max(farthest, int(latencies(group.topology, parts[0]).max()))
        for domain, members in enumerate(group.domains):
            if len(members) == 1:
                continue
            if nvls:
                paths, inside = switch_paths(group, domain, operation)
                parts.append(paths)
                loads.append(inside / channels)
            elif chain:
                order = group.order(domain, channel)
                pairs = list(pairwise(order))
                parts.append(hop_paths(group.topology, [Hop(a, b) for a, b in pairs] + [Hop(b, a) for a, b in pairs]))
                loads.append(1.0 / channels)
            else:
                pairs = [(a, b) for a in members for b in members if a != b]
                both = 2.0 if operation == "all_reduce" else 1.0
                parts.append(hop_paths(group.topology, [Hop(a, b) for a, b in pairs]))
                loads.append(both / len(members) / channels)
        flows.append(_joined(parts, loads))
    inside_steps = 1 if nvls else 2 * (group.ranks_per_domain - 1) if chain else 2 * min(1, group.ranks_per_domain - 1)
    return CollectiveSchedule(tuple(flows), inside_steps, 2, farthest)


def _joined(parts: list[NDArray[np.int32]], loads: Sequence[NDArray[np.float64] | float]) -> Flow:
    """One flow over the rows of several blocks of paths."""
    width = max(part.shape[1] for part in parts)
    rows = np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1) for part in parts])
    sizes = [
        np.broadcast_to(np.asarray(load, np.float64), (len(part),)) for part, load in zip(parts, loads, strict=True)
    ]
    return flow_over(rows, np.concatenate(sizes))
