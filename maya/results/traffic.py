"""How many bytes each rank sends to each other rank in a step.

In: a `Timeline` and its `Steps`. Out: a `Traffic`: a matrix of bytes between ranks, or between nodes where there are
many ranks. Send/recv and all-to-alls are counted exactly. In the other collectives, every rank is assumed to send to
its successor in the communicator, as in a ring (2 (n-1)/n of an all-reduce's buffer, (n-1)/n of the larger buffer of an
all-gather or reduce-scatter, all of a broadcast's or reduce's), whatever algorithm NCCL would choose: that changes
which links carry the bytes, but hardly how many leave a node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from maya.replay.collective_times import DTYPES
from maya.replay.rank_class import CollectiveCall
from maya.replay.timeline import Timeline
from maya.results.steps import Steps
from maya.util.arrays import Integers

MOST_RANKS = 64  # in a matrix of ranks; jobs with more get a matrix of nodes
METHOD = "rings, in the order of each communicator"


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes sent in a step (mean over the measured steps), from row to column."""

    between: str  # "ranks" or "nodes"
    matrix: Integers  # in a matrix of nodes, the diagonal is traffic within a node
    method: str
    sent_within_nodes: int  # total over all ranks
    sent_between_nodes: int
    calls: tuple[tuple[str, int, int], ...]  # mean over ranks: function, calls and bytes in a step; most bytes first


def find_traffic(timeline: Timeline, steps: Steps) -> Traffic:
    """The bytes that the job's ranks send each other."""
    per_node = timeline.settings.ranks_per_node
    world = timeline.world_size
    by_node = world > MOST_RANKS
    size = -(-world // per_node) if by_node else world
    matrix = np.zeros((size, size), dtype=np.int64)
    within = between = 0
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
        for call, number in zip(rank_class.calls, times.tolist(), strict=True):
            if not number:
                continue
            totals[call.call] += number * len(group.ranks)
            volume[call.call] += number * call.size * len(group.ranks)
            for rank, communicators in zip(group.ranks.tolist(), group.communicators, strict=True):
                members = communicators.get(call.communicator, ())
                for target, sent in _sent(call, rank, members):
                    moved = sent * number
                    same = rank // per_node == target // per_node
                    within, between = within + moved * same, between + moved * (not same)
                    if by_node:
                        matrix[rank // per_node, target // per_node] += moved
                    else:
                        matrix[rank, target] += moved
    calls = tuple(
        (name, -(-totals[name] // (count * world)), volume[name] // (count * world))
        for name in sorted(totals, key=lambda name: (-volume[name], name))
    )
    return Traffic("nodes" if by_node else "ranks", matrix // count, METHOD, within // count, between // count, calls)


def _sent(call: CollectiveCall, rank: int, members: tuple[int, ...]) -> list[tuple[int, int]]:
    """The (target, bytes) that a rank sends in one call."""
    ranks = len(members)
    if ranks < 2 or rank not in members:
        return []
    place = members.index(rank)
    following = members[(place + 1) % ranks]
    if call.call == "ncclSend":
        return [(members[call.peer], call.size)] if 0 <= call.peer < ranks and members[call.peer] != rank else []
    if call.call == "ncclRecv":
        return []
    if call.call in ("ncclAlltoAll",):
        return [(other, call.size // ranks) for other in members if other != rank]
    if call.call == "ncclAllReduce":
        return [(following, 2 * (ranks - 1) * call.size // ranks)]
    if call.call in ("ncclAllGather", "ncclReduceScatter"):
        return [(following, (ranks - 1) * call.size // ranks)]
    root = max(call.peer, 0)
    if call.call in ("ncclBroadcast", "ncclBcast"):  # a chain that begins at the root; the last rank sends nothing
        return [(following, call.size)] if (place + 1) % ranks != root else []
    if call.call == "ncclReduce":  # a chain that ends at the root
        return [(following, call.size)] if place != root else []
    one = call.count * DTYPES.get(call.dtype, (4, ""))[0]
    if call.call == "ncclGather":
        return [(members[root], one)] if place != root else []
    if call.call == "ncclScatter":
        return [(other, one) for other in members if other != rank] if place == root else []
    return []
