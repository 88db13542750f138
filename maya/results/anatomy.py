"""Where the time of a step goes, for every rank and step.

In: a `Timeline` and its `Steps`. Out: an `Anatomy`: nanoseconds by class for each rank and step, which add up to the
rank's step exactly, hidden communication, and which rank is the slowest, and why.

All ranks of a class have the same times, and many classes and steps have the same but for an offset: each different
step is divided once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.classes import CLASSES, NUMBER, SHARED, TITLES, TimeClass, classify, is_p2p
from maya.results.partition import Partition, Window, divide
from maya.results.steps import GroupSteps, Steps
from maya.util.text import time_text

Times = npt.NDArray[np.int64]

_NOTEWORTHY = 200  # a rank that needs longer by more than one part in so many is slower than the others


@dataclass(frozen=True)
class Slowest:
    """The rank that has most to do, which the others wait for."""

    rank: int
    own_ns: int  # of a step: what it does itself, without communication and waiting
    median_ns: int  # of all ranks
    reason: TimeClass | None  # the class in which it differs most from the median rank; None: ranks are even
    difference_ns: int  # in that class

    @property
    def text(self) -> str:
        """One line for people."""
        if self.reason is None:
            return "ranks are even"
        return (
            f"rank {self.rank} has {time_text(self.own_ns - self.median_ns)} more to do than the median rank: "
            f"most of all {time_text(self.difference_ns)} more {TITLES[self.reason]}"
        )


@dataclass(frozen=True, eq=False)
class Anatomy:
    """All ranks, in their order."""

    ns: Times  # [rank, step, class], classes as in CLASSES
    hidden_ns: Times  # [rank, step]: communication that computing hid
    communication_ns: Times  # [rank, step]: all communication
    length_ns: Times  # [rank, step]
    measured: tuple[int, ...]  # steps that count

    def of_rank(self, rank: int) -> dict[TimeClass, int]:
        """The mean over the measured steps, rounded such that classes add up to the mean step."""
        return dict(zip(CLASSES, self.mean_ns[rank].tolist(), strict=True))

    @cached_property
    def mean_ns(self) -> Times:
        """[rank, class]: means over the measured steps; the rounding goes to the largest class of each rank."""
        chosen = self.ns[:, list(self.measured)]
        count = max(len(self.measured), 1)
        means: Times = chosen.sum(axis=1) // count
        left = chosen.sum(axis=(1, 2)) // count - means.sum(axis=1)
        means[np.arange(len(means)), means.argmax(axis=1)] += left
        return means

    @cached_property
    def mean_hidden_ns(self) -> Times:
        """[rank]."""
        found: Times = self.hidden_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @cached_property
    def mean_communication_ns(self) -> Times:
        """[rank]."""
        found: Times = self.communication_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @cached_property
    def own_ns(self) -> Times:
        """[rank]: what a rank does in a step by itself, without communication and waiting."""
        means = self.mean_ns
        found: Times = means.sum(axis=1) - means[:, [NUMBER[name] for name in SHARED]].sum(axis=1)
        return found

    @cached_property
    def median_rank(self) -> int:
        """The rank whose own time is the (lower) median; of equal ones the first."""
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


def dissect(timeline: Timeline, steps: Steps) -> Anatomy:
    """Divide all steps of all ranks."""
    shape = timeline.world_size, steps.count
    ns = np.zeros((*shape, len(CLASSES)), dtype=np.int64)
    hidden, communication, length = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    known: dict[bytes, Partition] = {}
    for one, own_steps in zip(timeline.groups, steps.groups, strict=True):
        length[one.ranks] = np.diff(own_steps.bounds_ns)
        for step, part in enumerate(_parts(one, own_steps, timeline.settings.host.latency, known)):
            ns[one.ranks, step] = part.ns
            hidden[one.ranks, step] = part.hidden_ns
            communication[one.ranks, step] = part.communication_ns
    missing = np.flatnonzero(length.sum(axis=1) == 0)  # ranks without a trace: they asked nothing of their device
    if len(missing):
        length[missing] = steps.lengths_ns
        ns[missing, :, NUMBER[TimeClass.IDLE]] = steps.lengths_ns
    return Anatomy(ns, hidden, communication, length, steps.measured)


def _parts(one: GroupTimeline, steps: GroupSteps, latency: int, known: dict[bytes, Partition]) -> Iterator[Partition]:
    """Of each step of a class."""
    number, message = classify(one.rank_class), is_p2p(one.rank_class)
    arrival, start, end = (array[:, 0] for array in (one.arrival_ns, one.start_ns, one.end_ns))
    ready = one.launched_ns[:, 0] + latency
    bounds = steps.bounds_ns
    # Whatever ends after a step begins is from here on, and whatever is launched before it ends is up to there.
    froms = np.searchsorted(np.maximum.accumulate(end), bounds[:-1], side="right")
    untils = np.searchsorted(np.maximum.accumulate(one.launched_ns[:, 0]), bounds[1:], side="left")
    for step, (low, high) in enumerate(zip(froms.tolist(), untils.tolist(), strict=True)):
        rows = slice(low, max(low, high) + 1)  # one more: what comes next may explain a gap at the end
        columns = number[rows], message[rows], arrival[rows], start[rows], end[rows], ready[rows]
        yield _part(int(bounds[step]), int(bounds[step + 1]), *columns, known)


def _part(
    begin: int,
    stop: int,
    number: npt.NDArray[np.int8],
    message: npt.NDArray[np.bool_],
    arrival: Times,
    start: Times,
    end: Times,
    ready: Times,
    known: dict[bytes, Partition],
) -> Partition:
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
    for array in (number[inside], message[inside], *columns):
        digest.update(np.ascontiguousarray(array).data)
    key = digest.digest()
    if key not in known:
        known[key] = divide(Window(length, number[inside], message[inside], *columns, following_ready=following))
    return known[key]
