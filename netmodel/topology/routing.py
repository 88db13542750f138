"""Routing: look up the paths of many pairs of ranks in tables that are made once per topology.

In: pairs of ranks. Out: rows of link numbers, padded with -1. Among equally short paths, switches choose as real ones
do: by a hash of the ends and the flow (ECMP), or by the destination alone (d-mod-k, as on InfiniBand).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from netmodel.topology.local_paths import LocalPaths
from netmodel.topology.next_hops import FabricTables, NextHops

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
UNREACHABLE = 2**14


@dataclass(frozen=True)
class FabricRoutes(FabricTables):
    """The tables of a fabric, and how its switches choose among equal paths."""

    static: bool  # d-mod-k instead of ECMP

    @cached_property
    def next_hops(self) -> NextHops:
        return NextHops(self)


@dataclass(frozen=True)
class Routes:
    """The tables of all paths of a topology."""

    gpus_per_node: int
    gpus_per_domain: int
    links_per_domain: int
    local: tuple[LocalPaths, ...]  # [0]: domains without faults; the others: domains with lost links
    local_of: Int32s  # [domain] -> into `local`
    nics: Int32s  # [rank, place], nearest first; padded by repeating
    nic_counts: Int32s  # [rank]
    nic_up: Int32s  # [node, NIC] -> link to its switch; -1 where lost
    nic_down: Int32s
    nic_switch: Int32s
    nic_order: Int64s  # [node, NIC] -> its place among all NICs, counted switch by switch
    fabric: FabricRoutes


def mix(*values: Int64s) -> NDArray[np.uint64]:
    """A hash of integers that is the same on every machine."""
    state = np.zeros(np.broadcast_shapes(*(value.shape for value in values)), np.uint64)
    for value in values:
        state = (state ^ value.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def distances(neighbours: Int32s, cables: Int32s, costs: NDArray[np.int16]) -> NDArray[np.int16]:
    """The least cost between all switches."""
    switches, places = neighbours.shape
    distance = np.full((switches, switches), UNREACHABLE, np.int16)
    np.fill_diagonal(distance, 0)
    while True:
        nearer = distance
        for place in range(places):
            joined = cables[:, place] > 0
            through = distance[neighbours[:, place]] + costs[:, place, None]
            through[~joined] = UNREACHABLE
            nearer = np.minimum(nearer, through)
        if np.array_equal(nearer, distance):
            return distance
        distance = nearer


def find_paths(
    routes: Routes, source: Int64s, target: Int64s, source_nic: Int64s, target_nic: Int64s, flow: Int64s
) -> Int32s:
    """[pair, hop] -> link, -1 after a path's end. A NIC of -1 means the nearest; the flow selects among several."""
    blocks = [np.empty((len(source), 0), np.int32)]
    for pairs, rows in find_path_parts(routes, source, target, source_nic, target_nic, flow):
        block = np.full((len(source), rows.shape[1]), -1, np.int32)
        block[pairs] = rows
        blocks.append(block)
    return _compact(np.concatenate(blocks, axis=1))


def find_path_parts(
    routes: Routes, source: Int64s, target: Int64s, source_nic: Int64s, target_nic: Int64s, flow: Int64s
) -> Iterator[tuple[NDArray[np.intp], Int32s]]:
    """Pairs and their [pair, hop] -> link, or -1: first pairs inside a domain, then pairs between domains."""
    source_domain, target_domain = source // routes.gpus_per_domain, target // routes.gpus_per_domain
    near = source_domain == target_domain
    for number, local in enumerate(routes.local):
        here = np.flatnonzero(near & (routes.local_of[source_domain] == number))
        if not len(here):
            continue
        a, b = source[here] % routes.gpus_per_domain, target[here] % routes.gpus_per_domain
        choices = local.gpu_gpu_choices[a, b]
        near[here] = (choices > 0) | (a == b)
        choice = mix(a, b, flow[here]) % np.maximum(choices, 1).astype(np.uint64)
        yield (
            here,
            _shifted(local.gpu_gpu[a, b, choice.astype(np.int64)], source_domain[here] * routes.links_per_domain),
        )
    far = np.flatnonzero(~near)
    if len(far):
        yield far, _far_paths(routes, source[far], target[far], source_nic[far], target_nic[far], flow[far])


def _far_paths(
    routes: Routes, source: Int64s, target: Int64s, source_nic: Int64s, target_nic: Int64s, flow: Int64s
) -> Int32s:
    source_nic, target_nic = choose_nics(routes, source, target, source_nic, target_nic, flow)
    source_node, target_node = source // routes.gpus_per_node, target // routes.gpus_per_node
    columns = [
        _local_rows(routes, "gpu_nic", source, source_nic),
        routes.nic_up[source_node, source_nic][:, None],
        _fabric_rows(routes, source, target, source_nic, target_nic, flow),
        routes.nic_down[target_node, target_nic][:, None],
        _local_rows(routes, "nic_gpu", target, target_nic),
    ]
    return np.concatenate(columns, axis=1)


def choose_nics(
    routes: Routes, source: Int64s, target: Int64s, source_nic: Int64s, target_nic: Int64s, flow: Int64s
) -> tuple[Int64s, Int64s]:
    """The NICs at both ends: those given, else the nearest; if these are not connected, the nearest that are."""
    given_source, given_target = source_nic >= 0, target_nic >= 0
    nearest_source = routes.nics[source, flow % routes.nic_counts[source]]
    nearest_target = routes.nics[target, flow % routes.nic_counts[target]]
    source_nic = np.where(given_source, source_nic, nearest_source).astype(np.int64)
    target_nic = np.where(given_target, target_nic, nearest_target).astype(np.int64)
    source_node, target_node = source // routes.gpus_per_node, target // routes.gpus_per_node
    joined = _joined(routes, source_node, source_nic, target_node, target_nic)
    for pair in np.flatnonzero(~joined):
        sources = [int(source_nic[pair])] if given_source[pair] else usable_nics(routes, int(source[pair]))
        targets = [int(target_nic[pair])] if given_target[pair] else usable_nics(routes, int(target[pair]))
        best = _nearest_joined(routes, int(source[pair]), int(target[pair]), sources, targets)
        if best is not None:
            source_nic[pair], target_nic[pair] = best
        else:
            names = f"node{source_node[pair]}/nic{sources} and node{target_node[pair]}/nic{targets}"
            raise ValueError(f"no path from rank {source[pair]} to rank {target[pair]}: nothing connects {names}")
    return source_nic, target_nic


def _nearest_joined(
    routes: Routes, source: int, target: int, sources: list[int], targets: list[int]
) -> tuple[int, int] | None:
    """Among these NICs of two ranks, the connected pair with the smallest total distance to their GPUs."""
    near, far = (_hops_to_nics(routes, rank) for rank in (source, target))
    found = []
    for a in sources:
        for b in targets:
            ends = (source // routes.gpus_per_node, a, target // routes.gpus_per_node, b)
            if _joined(routes, *(np.array([end]) for end in ends))[0]:
                cost = routes.fabric.distance[routes.nic_switch[ends[:2]], routes.nic_switch[ends[2:]]]
                found.append((int(near[a] + far[b] + cost), a, b))
    return min(found)[1:] if found else None


def _hops_to_nics(routes: Routes, rank: int) -> Int32s:
    local = routes.local[routes.local_of[rank // routes.gpus_per_domain]]
    hops: Int32s = local.gpu_nic_hops[rank % routes.gpus_per_domain]
    return hops


def usable_nics(routes: Routes, rank: int) -> list[int]:
    """The NICs a rank can send through, nearest first."""
    hops = _hops_to_nics(routes, rank)
    node = rank // routes.gpus_per_node
    near = routes.nics[rank, : routes.nic_counts[rank]].tolist()
    others = [nic for nic in np.argsort(hops, kind="stable").tolist() if nic not in near]
    return [nic for nic in [*near, *others] if hops[nic] > 0 and routes.nic_up[node, nic] >= 0]


def _joined(
    routes: Routes, source_node: Int64s, source_nic: Int64s, target_node: Int64s, target_nic: Int64s
) -> NDArray[np.bool_]:
    up, down = routes.nic_up[source_node, source_nic], routes.nic_down[target_node, target_nic]
    first, last = routes.nic_switch[source_node, source_nic], routes.nic_switch[target_node, target_nic]
    joined: NDArray[np.bool_] = (up >= 0) & (down >= 0) & (routes.fabric.distance[first, last] < UNREACHABLE)
    return joined


def _local_rows(routes: Routes, table: str, rank: Int64s, nic: Int64s) -> Int32s:
    domain = rank // routes.gpus_per_domain
    number = routes.local_of[domain]
    width = max(getattr(local, table).shape[-1] for local in routes.local)
    rows = np.full((len(rank), width), -1, np.int32)
    for place, local in enumerate(routes.local):
        here = np.flatnonzero(number == place)
        if len(here):
            found = getattr(local, table)[rank[here] % routes.gpus_per_domain, nic[here]]
            rows[here, : found.shape[1]] = _shifted(found, domain[here] * routes.links_per_domain)
    return rows


def _fabric_rows(
    routes: Routes, source: Int64s, target: Int64s, source_nic: Int64s, target_nic: Int64s, flow: Int64s
) -> Int32s:
    """Paths from the switch of one NIC to that of the other; all pairs advance one hop at a time."""
    fabric = routes.fabric
    source_node, target_node = source // routes.gpus_per_node, target // routes.gpus_per_node
    at = routes.nic_switch[source_node, source_nic].astype(np.int64)
    end = routes.nic_switch[target_node, target_nic].astype(np.int64)
    seed = mix(source, target, source_nic, target_nic, flow)
    quotient = routes.nic_order[target_node, target_nic].copy()
    columns: list[Int32s] = []
    unfinished = np.flatnonzero(at != end)
    hops = fabric.next_hops
    while len(unfinished):
        here, there = at[unfinished], end[unfinished]
        pair = hops.numbers(here, there)
        if fabric.static:
            link, after, quotient[unfinished] = hops.by_destination(pair, quotient[unfinished])
        else:
            link, after = hops.by_hash(pair, mix(seed[unfinished].astype(np.int64), here))
        column = np.full(len(source), -1, np.int32)
        column[unfinished] = link
        columns.append(column)
        at[unfinished] = after
        unfinished = unfinished[at[unfinished] != there]
    return np.stack(columns, axis=1) if columns else np.empty((len(source), 0), np.int32)


def _shifted(rows: Int32s, offset: Int64s) -> Int32s:
    return np.where(rows >= 0, rows + offset.astype(np.int32)[:, None], np.int32(-1)).astype(np.int32)


def _compact(rows: Int32s) -> Int32s:
    """The rows with their -1 moved to the end, trimmed to the longest."""
    filled = rows >= 0
    lengths = filled.sum(axis=1)
    compact = np.full((len(rows), int(lengths.max(initial=0))), -1, np.int32)
    row, column = np.nonzero(filled)
    del column
    starts = np.cumsum(lengths) - lengths
    compact[row, np.arange(len(row)) - starts[row]] = rows[filled]
    return compact
