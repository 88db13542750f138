"""Where the time of a step goes, for every rank and step.

In: a `Timeline` and its `Steps`. Out: a `TimeBreakdown`: nanoseconds in each time class for each rank and step, which
add up to the length of the rank's step exactly; hidden communication; and the slowest rank with the reason.

All ranks of a replay group have the same times, and many groups and steps differ by an offset only: each distinct step
is broken down once (step_breakdown).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.step_breakdown import StepBreakdown, StepWindow, break_down_step
from maya.results.steps import GroupSteps, Steps
from maya.results.time_classes import CLASSES, NUMBER, SHARED, TITLES, TimeClass, classify, is_p2p
from maya.util.arrays import Booleans, Integers
from maya.util.text import time_text

_NOTEWORTHY = 200  # a rank is a straggler if its own time exceeds the median by more than 1/200


@dataclass(frozen=True)
class Slowest:
    """The rank with the most time of its own, which the others wait for."""

    rank: int
    own_ns: int  # time in a step without communication and waiting
    median_ns: int  # median over all ranks
    reason: TimeClass | None  # the time class in which it exceeds the median rank most; None: no straggler
    difference_ns: int  # in that class

    @property
    def text(self) -> str:
        """One line for the terminal and the report."""
        if self.reason is None:
            return "none"
        return (
            f"rank {self.rank} takes {time_text(self.own_ns - self.median_ns)} longer than the median rank, "
            f"mostly {TITLES[self.reason]} (+{time_text(self.difference_ns)})"
        )


@dataclass(frozen=True, eq=False)
class TimeBreakdown:
    """All ranks, in order."""

    ns: Integers  # [rank, step, time class], in the order of CLASSES
    hidden_ns: Integers  # [rank, step]: communication that overlaps with computing
    communication_ns: Integers  # [rank, step]: all communication
    length_ns: Integers  # [rank, step]
    measured: tuple[int, ...]  # the measured steps

    def of_rank(self, rank: int) -> dict[TimeClass, int]:
        """Means over the measured steps, rounded so that the time classes add up to the mean step."""
        return dict(zip(CLASSES, self.mean_ns[rank].tolist(), strict=True))

    @cached_property
    def mean_ns(self) -> Integers:
        """[rank, time class]: means over the measured steps. The largest class of each rank takes the rounding."""
        chosen = self.ns[:, list(self.measured)]
        count = max(len(self.measured), 1)
        means: Integers = chosen.sum(axis=1) // count
        left = chosen.sum(axis=(1, 2)) // count - means.sum(axis=1)
        means[np.arange(len(means)), means.argmax(axis=1)] += left
        return means

    @cached_property
    def mean_hidden_ns(self) -> Integers:
        """[rank]: means over the measured steps."""
        found: Integers = self.hidden_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @cached_property
    def mean_communication_ns(self) -> Integers:
        """[rank]: means over the measured steps."""
        found: Integers = self.communication_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @cached_property
    def own_ns(self) -> Integers:
        """[rank]: a rank's own time in a step, without communication and waiting."""
        means = self.mean_ns
        found: Integers = means.sum(axis=1) - means[:, [NUMBER[name] for name in SHARED]].sum(axis=1)
        return found

    @cached_property
    def median_rank(self) -> int:
        """The first rank whose own time is the (lower) median."""
        own = self.own_ns
        middle = np.sort(own)[(len(own) - 1) // 2]
        return int(np.flatnonzero(own == middle)[0])

    @property
    def fastest_rank(self) -> int:
        return int(self.own_ns.argmin())

    @cached_property
    def slowest(self) -> Slowest:
        own, means = self.own_ns, self.mean_ns
        rank, median = int(own.argmax()), self.median_rank
        most, middle = int(own[rank]), int(own[median])
        if (most - middle) * _NOTEWORTHY <= max(middle, 1):
            return Slowest(rank, most, middle, None, 0)
        difference = means[rank] - means[median]
        difference[[NUMBER[name] for name in SHARED]] = 0
        reason = int(difference.argmax())
        return Slowest(rank, most, middle, CLASSES[reason], int(difference[reason]))


def find_time_breakdown(timeline: Timeline, steps: Steps) -> TimeBreakdown:
    """Break down all steps of all ranks."""
    shape = timeline.world_size, steps.count
    ns = np.zeros((*shape, len(CLASSES)), dtype=np.int64)
    hidden, communication, length = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    known: dict[bytes, StepBreakdown] = {}
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        length[group.ranks] = np.diff(own_steps.bounds_ns)
        for step, found in enumerate(_steps_of_group(group, own_steps, timeline.settings.host.latency, known)):
            ns[group.ranks, step] = found.ns
            hidden[group.ranks, step] = found.hidden_ns
            communication[group.ranks, step] = found.communication_ns
    missing = np.flatnonzero(length.sum(axis=1) == 0)  # ranks without a trace: they did nothing on their GPU
    if len(missing):
        length[missing] = steps.lengths_ns
        ns[missing, :, NUMBER[TimeClass.IDLE]] = steps.lengths_ns
    return TimeBreakdown(ns, hidden, communication, length, steps.measured)


def _steps_of_group(
    group: GroupTimeline, steps: GroupSteps, latency: int, known: dict[bytes, StepBreakdown]
) -> Iterator[StepBreakdown]:
    """The breakdown of each step of a replay group."""
    number, p2p = classify(group.rank_class), is_p2p(group.rank_class)
    arrival, start, end = (array[:, 0] for array in (group.arrival_ns, group.start_ns, group.end_ns))
    ready = group.launched_ns[:, 0] + latency
    bounds = steps.bounds_ns
    # From the first row that ends after the step begins, to the last row that is launched before the step ends.
    froms = np.searchsorted(np.maximum.accumulate(end), bounds[:-1], side="right")
    untils = np.searchsorted(np.maximum.accumulate(group.launched_ns[:, 0]), bounds[1:], side="left")
    for step, (low, high) in enumerate(zip(froms.tolist(), untils.tolist(), strict=True)):
        rows = slice(low, max(low, high) + 1)  # one more: the next row may explain a gap at the end
        columns = number[rows], p2p[rows], arrival[rows], start[rows], end[rows], ready[rows]
        yield _one_step(int(bounds[step]), int(bounds[step + 1]), *columns, known)


def _one_step(
    begin: int,
    stop: int,
    number: npt.NDArray[np.int8],
    p2p: Booleans,
    arrival: Integers,
    start: Integers,
    end: Integers,
    ready: Integers,
    known: dict[bytes, StepBreakdown],
) -> StepBreakdown:
    inside = (end > begin) & (arrival < stop) & (end > arrival)
    length = stop - begin
    after = np.flatnonzero(arrival >= stop)
    following = int(np.clip(ready[after].min() - begin, 0, length)) if len(after) else length
    columns = (
        np.clip(arrival[inside] - begin, 0, length),
        np.clip(start[inside] - begin, 0, length),
        np.clip(end[inside] - begin, 0, length),
        np.clip(ready[inside] - begin, 0, length),
    )
    digest = hashlib.blake2b(length.to_bytes(8, "little") + following.to_bytes(8, "little"), digest_size=16)
    for array in (number[inside], p2p[inside], *columns):
        digest.update(np.ascontiguousarray(array).data)
    key = digest.digest()
    if key not in known:
        window = StepWindow(length, number[inside], p2p[inside], *columns, following_ready=following)
        known[key] = break_down_step(window)
    return known[key]
