"""How many bytes each rank sends to each other rank in a step.

In: a `Timeline` and its `Steps`. Out: a `Traffic`: a matrix of bytes between ranks, or between nodes or blocks of nodes
where there are many. Send/recv and all-to-alls are counted exactly. In the other collectives, every rank is assumed to
send to its successor in the communicator, as in a ring (2 (n-1)/n of an all-reduce's buffer, (n-1)/n of the larger
buffer of an all-gather or reduce-scatter, all of a broadcast's or reduce's), whatever algorithm NCCL would choose: that
changes which links carry the bytes, but hardly how many leave a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from maya.replay.collective_times import DTYPES
from maya.replay.rank_class import CollectiveCall
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.steps import Steps
from maya.util.arrays import Booleans, Integers

MOST_RANKS = 64  # in a matrix of ranks; jobs with more get a matrix of nodes
MOST_NODES = 256  # in a matrix of nodes; jobs with more get a matrix of blocks of nodes
_MOST_PAIRED = 64  # members of an all-to-all whose pairs are listed
METHOD = "rings, in the order of each communicator"


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes sent in a step (mean over the measured steps), from row to column."""

    between: str  # "ranks", "nodes" or "blocks of 32 nodes"
    matrix: Integers  # in a matrix of nodes or blocks, the diagonal is traffic within one
    method: str
    sent_within_nodes: int  # total over all ranks
    sent_between_nodes: int
    calls: tuple[tuple[str, int, int], ...]  # mean over ranks: function, calls and bytes in a step; most bytes first


def find_traffic(timeline: Timeline, steps: Steps) -> Traffic:
    """The bytes that the job's ranks send each other."""
    world = timeline.world_size
    sums = _Sums(world, timeline.settings.ranks_per_node)
    count = len(steps.measured)
    totals: Counter[str] = Counter()
    volume: Counter[str] = Counter()
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        rank_class = group.rank_class
        if not rank_class.calls:
            continue
        times = np.zeros(len(rank_class.calls), dtype=np.int64)
        for step in steps.measured:
            called = rank_class.call[int(own_steps.rows[step]) : int(own_steps.rows[step + 1])]
            times += np.bincount(called[called >= 0], minlength=len(times))
        places: dict[int, _Places] = {}
        for call, number in zip(rank_class.calls, times.tolist(), strict=True):
            if not number:
                continue
            totals[call.call] += number * len(group.ranks)
            volume[call.call] += number * call.size * len(group.ranks)
            if call.communicator not in places:
                places[call.communicator] = _places(group, call.communicator, world)
            if call.call == "ncclAlltoAll":
                _exchange(sums, places[call.communicator], call.size, number)
            for sources, targets, size in _sent(call, places[call.communicator]):
                sums.add(sources, targets, size * number)
    calls = tuple(
        (name, -(-totals[name] // (count * world)), volume[name] // (count * world))
        for name in sorted(totals, key=lambda name: (-volume[name], name))
    )
    matrix = sums.matrix // count
    return Traffic(sums.unit, matrix, METHOD, sums.within // count, sums.between // count, calls)


class _Sums:
    """Bytes between ranks, nodes or blocks of nodes."""

    def __init__(self, world: int, per_node: int) -> None:
        nodes = -(-world // per_node)
        width, self.unit = (per_node, "nodes") if world > MOST_RANKS else (1, "ranks")
        block = 1
        while -(-nodes // block) > MOST_NODES:
            block *= 2
        if block > 1:
            width, self.unit = per_node * block, f"blocks of {block} nodes"
        size = -(-world // width)
        self.matrix = np.zeros((size, size), dtype=np.int64)
        self.within = self.between = 0  # nodes
        self._per_node = per_node
        self._width = width

    def add(self, sources: Integers, targets: Integers, size: int) -> None:
        """Each source sends `size` bytes to its target."""
        same = int((sources // self._per_node == targets // self._per_node).sum())
        self.within += same * size
        self.between += (len(sources) - same) * size
        np.add.at(self.matrix, (sources // self._width, targets // self._width), size)

    def add_to_all(self, sources: Integers, members: Integers, size: int) -> None:
        """Each source sends `size` bytes to every member but itself, without a list of all pairs."""
        own = np.bincount(members, minlength=int(sources.max()) + 1)[sources]  # times that a source is a member
        rows = len(self.matrix)
        blocks, targets = (np.bincount(ranks // self._width, minlength=rows) for ranks in (sources, members))
        self.matrix += np.outer(blocks, targets) * size
        np.subtract.at(self.matrix, (sources // self._width, sources // self._width), own * size)
        nodes = np.bincount(members // self._per_node, minlength=int(sources.max()) // self._per_node + 1)
        same = int((nodes[sources // self._per_node] - own).sum())
        self.within += same * size
        self.between += (len(sources) * len(members) - int(own.sum()) - same) * size


@dataclass(frozen=True, eq=False)
class _Places:
    """Where ranks are in their communicators. Arrays have an element for each rank that has a peer."""

    ranks: Integers
    place: Integers
    size: Integers  # of the communicator
    first: Integers  # of the communicator, in `members`
    members: Integers  # of all communicators, one after the other

    def member(self, place: Integers) -> Integers:
        """For each rank, the member in this place of its communicator."""
        found: Integers = self.members[self.first + place]
        return found


def _places(group: GroupTimeline, number: int, world: int) -> _Places:
    """The places of a replay group's ranks in the communicators of this number."""
    numbers: dict[int, int] = {}
    distinct: list[Sequence[int]] = []
    which = np.empty(len(group.ranks), dtype=np.int64)
    for column, communicators in enumerate(group.communicators):
        mine = communicators.get(number, ())
        if id(mine) not in numbers:
            numbers[id(mine)] = len(distinct)
            distinct.append(mine)
        which[column] = numbers[id(mine)]
    sizes = np.array([len(each) for each in distinct], dtype=np.int64)
    first = np.cumsum(sizes) - sizes
    members: Integers = np.concatenate([np.array(each, dtype=np.int64) for each in distinct])
    keys = np.repeat(np.arange(len(distinct)), sizes) * world + members
    order = np.argsort(keys, kind="stable")  # a rank that is several members counts as the first of them
    wanted = which * world + group.ranks
    at = np.searchsorted(keys[order], wanted)
    is_member = (sizes[which] > 1) & (np.append(keys[order], -1)[at] == wanted)
    which, place = which[is_member], order[at[is_member]]
    ranks = group.ranks[is_member].astype(np.int64)
    return _Places(ranks, place - first[which], sizes[which], first[which], members)


def _exchange(sums: _Sums, places: _Places, total: int, number: int) -> None:
    """An all-to-all of `total` bytes per member, `number` times."""
    small = places.size <= _MOST_PAIRED
    for size in np.unique(places.size[small]).tolist():
        alike = np.flatnonzero(places.size == size)
        sources = np.repeat(places.ranks[alike], size)
        targets = places.members[(places.first[alike][:, None] + np.arange(size)).ravel()]
        others = sources != targets
        sums.add(sources[others], targets[others], total // size * number)
    for first in np.unique(places.first[~small]).tolist():
        alike = np.flatnonzero((places.first == first) & ~small)
        size = int(places.size[alike[0]])
        sums.add_to_all(places.ranks[alike], places.members[first : first + size], total // size * number)


def _sent(call: CollectiveCall, places: _Places) -> Iterator[tuple[Integers, Integers, int]]:
    """Sources, targets, and the bytes that each source sends in one call."""
    ranks, place, sizes = places.ranks, places.place, places.size
    following = places.member((place + 1) % np.maximum(sizes, 1))
    root = max(call.peer, 0)
    one = call.count * DTYPES.get(call.dtype, (4, ""))[0]
    if call.call == "ncclSend":
        known = (call.peer >= 0) & (call.peer < sizes)
        targets = places.member(np.where(known, call.peer, 0))
        yield from _rows(known & (targets != ranks), ranks, targets, call.size)
    elif call.call in ("ncclAllReduce", "ncclAllGather", "ncclReduceScatter"):
        rounds = 2 if call.call == "ncclAllReduce" else 1
        for size in np.unique(sizes).tolist():
            yield from _rows(sizes == size, ranks, following, rounds * (size - 1) * call.size // size)
    elif call.call in ("ncclBroadcast", "ncclBcast"):  # a chain that begins at the root; the last rank sends nothing
        yield from _rows((place + 1) % np.maximum(sizes, 1) != root, ranks, following, call.size)
    elif call.call == "ncclReduce":  # a chain that ends at the root
        yield from _rows(place != root, ranks, following, call.size)
    elif call.call == "ncclGather":
        yield from _rows(place != root, ranks, places.member(np.full(len(ranks), root)), one)
    elif call.call == "ncclScatter":
        for at in np.flatnonzero(place == root).tolist():
            others = places.members[places.first[at] : places.first[at] + sizes[at]]
            others = others[others != ranks[at]]
            yield np.full(len(others), ranks[at]), others, one


def _rows(among: Booleans, sources: Integers, targets: Integers, size: int) -> Iterator[tuple[Integers, Integers, int]]:
    yield sources[among], targets[among], size
