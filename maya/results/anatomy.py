"""Where the time of a step goes, for every rank and step.

In: a `Timeline` and its `Steps`. Out: an `Anatomy`: nanoseconds by class for each rank and step, which add up to the
rank's step exactly, hidden communication, and which rank is the slowest, and why.

Ranks of one behaviour mostly have the same times but for an offset, and so have steps: each different one is divided
once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.timeline.timeline import ClassTimeline, Timeline
from maya.results.classes import CLASSES, LOST, NUMBER, TITLES, TimeClass, classify, messages
from maya.results.partition import Partition, Window, divide
from maya.results.steps import ClassSteps, Steps

Times = npt.NDArray[np.int64]

_RANKS_AT_ONCE = 64  # so that what is worked on stays small
_NOTEWORTHY = 200  # a rank that needs longer by more than one part in so many is slower than the others


@dataclass(frozen=True)
class Slowest:
    """The rank that has most to do, which the others wait for."""

    rank: int
    own_ns: int  # of a step: what it does, without what it waits
    median_ns: int  # of all ranks
    reason: TimeClass | None  # the class in which it differs most from the median rank; None: ranks are even
    difference_ns: int  # in that class

    @property
    def text(self) -> str:
        """One line for people."""
        if self.reason is None:
            return "ranks are even"
        more = self.own_ns / self.median_ns - 1 if self.median_ns else 0.0
        return (
            f"rank {self.rank} is busy {more:.1%} longer than the median rank: "
            f"{self.difference_ns / 1e6:.2f} ms more {TITLES[self.reason]}"
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

    @property
    def mean_ns(self) -> Times:
        """[rank, class]: means over the measured steps; the rounding goes to the largest class of each rank."""
        chosen = self.ns[:, list(self.measured)]
        count = max(len(self.measured), 1)
        means: Times = chosen.sum(axis=1) // count
        left = chosen.sum(axis=(1, 2)) // count - means.sum(axis=1)
        means[np.arange(len(means)), means.argmax(axis=1)] += left
        return means

    @property
    def mean_hidden_ns(self) -> Times:
        """[rank]."""
        found: Times = self.hidden_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @property
    def mean_communication_ns(self) -> Times:
        """[rank]."""
        found: Times = self.communication_ns[:, list(self.measured)].sum(axis=1) // max(len(self.measured), 1)
        return found

    @property
    def own_ns(self) -> Times:
        """[rank]: what a rank does in a step, without what it waits for others."""
        means = self.mean_ns
        found: Times = means.sum(axis=1) - means[:, [NUMBER[name] for name in LOST]].sum(axis=1)
        return found

    @property
    def median_rank(self) -> int:
        """The rank whose own time is the (lower) median; of equal ones the first."""
        own = self.own_ns
        middle = np.sort(own)[(len(own) - 1) // 2]
        return int(np.flatnonzero(own == middle)[0])

    @property
    def fastest_rank(self) -> int:
        return int(self.own_ns.argmin())

    @property
    def slowest(self) -> Slowest:
        own, means = self.own_ns, self.mean_ns
        rank, median = int(own.argmax()), self.median_rank
        most, middle = int(own[rank]), int(own[median])
        if (most - middle) * _NOTEWORTHY <= max(middle, 1):
            return Slowest(rank, most, middle, None, 0)
        difference = means[rank] - means[median]
        difference[[NUMBER[name] for name in LOST]] = 0
        reason = int(difference.argmax())
        return Slowest(rank, most, middle, CLASSES[reason], int(difference[reason]))


def dissect(timeline: Timeline, steps: Steps) -> Anatomy:
    """Divide all steps of all ranks."""
    shape = timeline.world_size, steps.count
    ns = np.zeros((*shape, len(CLASSES)), dtype=np.int64)
    hidden, communication, length = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    known: dict[bytes, Partition] = {}
    for one, own_steps in zip(timeline.classes, steps.classes, strict=True):
        length[one.ranks] = np.diff(own_steps.bounds_ns, axis=0).T
        for column, step, part in _parts(one, own_steps, timeline.settings.host.latency, known):
            rank = int(one.ranks[column])
            ns[rank, step] = part.ns
            hidden[rank, step] = part.hidden_ns
            communication[rank, step] = part.communication_ns
    missing = np.flatnonzero(length.sum(axis=1) == 0)  # ranks without a trace: they asked nothing of their device
    if len(missing):
        length[missing] = steps.lengths_ns
        ns[missing, :, NUMBER[TimeClass.IDLE]] = steps.lengths_ns
    return Anatomy(ns, hidden, communication, length, steps.measured)


def _parts(
    one: ClassTimeline, steps: ClassSteps, latency: int, known: dict[bytes, Partition]
) -> list[tuple[int, int, Partition]]:
    """(column, step, partition) for all ranks and steps of a class."""
    number, message = classify(one.program), messages(one.program)
    parts = []
    for first in range(0, len(one.ranks), _RANKS_AT_ONCE):
        columns = slice(first, min(first + _RANKS_AT_ONCE, len(one.ranks)))
        launched, end = one.launched_ns[:, columns], one.end_ns[:, columns]
        start, arrival = one.start_ns[:, columns], one.arrival_ns[:, columns]
        ended = np.maximum.accumulate(end, axis=0) if len(end) else end
        seen = np.maximum.accumulate(launched, axis=0) if len(end) else end
        bounds = steps.bounds_ns[:, columns]
        for column in range(bounds.shape[1]):
            froms = np.searchsorted(ended[:, column], bounds[:-1, column], side="right")
            untils = np.searchsorted(seen[:, column], bounds[1:, column], side="left")
            for step, (low, high) in enumerate(zip(froms.tolist(), untils.tolist(), strict=True)):
                begin, stop = int(bounds[step, column]), int(bounds[step + 1, column])
                rows = slice(low, max(low, high) + 1)  # one more: what comes next may explain a gap at the end
                part = _part(
                    begin,
                    stop,
                    number[rows],
                    message[rows],
                    arrival[rows, column],
                    start[rows, column],
                    end[rows, column],
                    launched[rows, column] + latency,
                    known,
                )
                parts.append((first + column, step, part))
    return parts


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
