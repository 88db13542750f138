"""Which collectives the exposed communication of a step belongs to.

In: a `Timeline` and its `Steps`. Out: `ExposedCalls`: for each call and number of members, the time in which it
transfers data and no computing overlaps with it. The times of all calls add up to the time class `communication`
exactly: where several calls overlap, the one that began first has the time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.steps import Steps
from maya.results.time_classes import COMPUTING, NUMBER, TimeClass, classify
from maya.util.arrays import Booleans, Integers

Key = tuple[str, int]  # the NCCL function, and the number of members of its communicator


@dataclass(frozen=True)
class ExposedCalls:
    """Exposed communication by call."""

    total_ns: dict[Key, int]  # of all ranks and all measured steps; the largest first
    rank_steps: int  # how many steps of ranks that is

    def mean_ns(self) -> dict[Key, int]:
        """The time in a step, mean over all ranks and measured steps."""
        return {key: ns // max(self.rank_steps, 1) for key, ns in self.total_ns.items()}


def find_exposed_calls(timeline: Timeline, steps: Steps) -> ExposedCalls:
    """Attribute the exposed communication of all measured steps."""
    totals: Counter[Key] = Counter()
    known: dict[bytes, dict[int, int]] = {}
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        keys = _keys(group)
        if not keys:
            continue
        for step in steps.measured:
            begin, stop = int(own_steps.bounds_ns[step]), int(own_steps.bounds_ns[step + 1])
            for call, ns in _exposed_in(group, begin, stop, known).items():
                totals[keys[call]] += ns * len(group.ranks)
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return ExposedCalls({key: ns for key, ns in ordered if ns}, timeline.world_size * len(steps.measured))


def _keys(group: GroupTimeline) -> list[Key]:
    """The key of each call of the group's rank class."""
    communicators = group.communicators[0]
    return [(call.call, len(communicators.get(call.communicator, ()))) for call in group.rank_class.calls]


def _exposed_in(group: GroupTimeline, begin: int, stop: int, known: dict[bytes, dict[int, int]]) -> dict[int, int]:
    """Exposed time by number of the call, in one step. Steps that differ by an offset only are computed once."""
    start, end = group.start_ns[:, 0], group.end_ns[:, 0]
    number = classify(group.rank_class)
    relevant = number <= NUMBER[TimeClass.COMMUNICATION]
    rows = np.flatnonzero(relevant & (end > begin) & (start < stop) & (end > start))
    starts, ends = (np.clip(array[rows] - begin, 0, stop - begin) for array in (start, end))
    calls = group.rank_class.call[rows]
    digest = hashlib.blake2b(digest_size=16)
    for array in (starts, ends, calls, number[rows]):
        digest.update(np.ascontiguousarray(array).data)
    key = digest.digest()
    if key not in known:
        known[key] = _attribute(starts, ends, number[rows] < len(COMPUTING), calls)
    return known[key]


def _attribute(starts: Integers, ends: Integers, computing: Booleans, calls: npt.NDArray[np.int32]) -> dict[int, int]:
    """Give each moment in which no row computes to the call that began first."""
    edges, at = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    first, last = np.split(at.reshape(-1), 2)
    changes = np.zeros(len(edges), dtype=np.int64)
    np.add.at(changes, first[computing], 1)
    np.add.at(changes, last[computing], -1)
    free = np.cumsum(changes) == 0  # between an edge and the next one
    lengths = np.append(np.diff(edges), 0)
    found: Counter[int] = Counter()
    rows = np.flatnonzero(~computing)
    for row in rows[np.argsort(starts[rows], kind="stable")].tolist():
        span = slice(int(first[row]), int(last[row]))
        found[int(calls[row])] += int(lengths[span][free[span]].sum())
        free[span] = False
    return found
