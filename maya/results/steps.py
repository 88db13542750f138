"""Training steps, found without help from the script.

In: a `Timeline`. Out: `Steps`: for every rank when its steps began and ended. A step ends when the last kernel of its
optimizers ends on the device (`Optimizer.step#…` annotations of torch.optim). Optimizers that follow each other without
a backward pass between them belong to one step, and so do optimizers that take turns, as in a GAN (optimizer_turns).
Where no rank has an optimizer, backward passes and the weight updates after them mark the steps (steps_from_backward);
without these, repetitions in the trace (steps_from_repetition). Otherwise the whole run counts as one step. With
`steps_from`, annotations of that name mark the steps instead. If an optimizer was captured into a CUDA graph, every
launch of the graph is a step.

A step begins where the one before it ended; the first begins with the first GEMM, attention, convolution or embedding
of the job. Early steps whose length differs from that of the later ones are warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

from maya.estimators.kernel import KernelClass
from maya.estimators.models.bottleneck import TENSOR_CORE_CLASSES
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.steps_from_annotations import (
    StepMark,
    annotation_marks,
    annotations_named,
    optimizer_marks,
    skipped_steps,
)
from maya.results.steps_from_backward import BACKWARD, REDUCTION, UPDATE, pass_marks
from maya.results.steps_from_repetition import REPETITION, repetition_marks
from maya.util.arrays import Indices, Integers
from maya.util.suggestions import did_you_mean

OPTIMIZER, WHOLE_RUN = "optimizer", "run"
NO_STEPS = "no optimizer, no backward pass and no repetition was found"

_LIKE = 20  # two steps are alike if their lengths differ by at most 1/20


@dataclass(frozen=True, eq=False)
class GroupSteps:
    """The steps of a replay group: boundary k is where step k begins and the one before it ends."""

    bounds_ns: Integers  # time of each boundary; the same for all ranks of the group
    rows: Indices  # for each boundary, the first row that is launched after it


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a job."""

    source: str  # OPTIMIZER, UPDATE, REDUCTION, BACKWARD, REPETITION, WHOLE_RUN, or the name of the annotation
    lengths_ns: tuple[int, ...]  # for each step of the job: between the ends of the last rank
    warm_up: int  # steps at the beginning that are not measured
    skipped: tuple[int, ...]  # steps with batches after which the optimizer was not called (by a gradient scaler)
    groups: tuple[GroupSteps, ...]  # for each of timeline.groups
    note: str = ""
    whole_steps: Mapping[int, int] = field(
        default_factory=dict
    )  # for each rank, the number of steps that its trace holds
    batches: int = 1  # forward passes in a step, each followed by an optimizer of its own

    @property
    def count(self) -> int:
        return len(self.lengths_ns)

    @property
    def measured(self) -> tuple[int, ...]:
        """The numbers of the steps that are measured."""
        late = [step for step in range(self.warm_up, self.count) if step not in self.skipped]
        return tuple(late or range(self.warm_up, self.count))

    @property
    def typical(self) -> int:
        """The measured step of median length, for views that show one step."""
        return min(self.measured, key=lambda step: (abs(self.lengths_ns[step] - self.median_ns), step))

    @property
    def median_ns(self) -> int:
        """The median length of the measured steps: the step time."""
        return median_low([self.lengths_ns[step] for step in self.measured])


class NoWholeStepError(ValueError):
    """The traces end before a step does."""


def find_steps(timeline: Timeline, steps_from: str | None = None) -> Steps:
    """The steps of all ranks."""
    source, by_rank_class, notes = _marks(timeline, steps_from)
    if source == WHOLE_RUN:
        if any(rank_class.trace.remedy for rank_class in timeline.rank_classes):
            raise NoWholeStepError(_no_whole_step(timeline))
        return _whole_run(timeline)
    marks = [by_rank_class[id(group.rank_class)] for group in timeline.groups]
    counts = [len(found) for found in marks if found]
    if source == REPETITION:  # found from the end on, so a rank may lack some at the beginning
        marks = [found[-min(counts) :] for found in marks]
    count = min(_replayed(group, found) for group, found in zip(timeline.groups, marks, strict=True) if found)
    if not count:
        raise NoWholeStepError(_no_whole_step(timeline))
    begin, first_rows = _beginning(timeline)
    found_steps: list[GroupSteps | None] = [
        _group_steps(group, found[:count], begin, row) if found else None
        for group, found, row in zip(timeline.groups, marks, first_rows, strict=True)
    ]
    latest: Integers = np.max(np.stack([one.bounds_ns for one in found_steps if one is not None]), axis=0)
    complete = tuple(
        one if one is not None else _without_marks(of, latest)
        for one, of in zip(found_steps, timeline.groups, strict=True)
    )
    lengths = tuple(np.diff(latest).tolist())
    skipped: set[int] = set()
    if source == OPTIMIZER:
        for rank_class in timeline.rank_classes:
            skipped.update(skipped_steps(rank_class, by_rank_class[id(rank_class)][:count]))
    notes += recording_limits(timeline)
    if len(set(counts)) > 1:
        notes.append(f"ranks made {min(counts)} to {max(counts)} steps; the first {count} count")
    whole_steps = {
        rank: len(found) for group, found in zip(timeline.groups, marks, strict=True) for rank in group.ranks.tolist()
    }
    return Steps(
        source,
        lengths,
        warm_up_of(lengths),
        tuple(sorted(skipped)),
        complete,
        "; ".join(dict.fromkeys(notes)),
        whole_steps,
        batches=max(mark.batches for found in marks for mark in found[:count]),
    )


def _marks(timeline: Timeline, steps_from: str | None) -> tuple[str, dict[int, list[StepMark]], list[str]]:
    """The source of the steps, the marks of each rank class (by id), and notes for the reader."""
    if steps_from is not None:
        by_user = {id(rank_class): annotation_marks(rank_class, steps_from) for rank_class in timeline.rank_classes}
        if not any(by_user.values()):
            truncated = any(rank_class.trace.remedy for rank_class in timeline.rank_classes)
            if truncated:
                raise NoWholeStepError(_no_whole_step(timeline))
            raise ValueError(_no_such_annotation(timeline, steps_from))
        return steps_from, by_user, []
    by_rank_class: dict[int, list[StepMark]] = {}
    notes: list[str] = []
    for rank_class in timeline.rank_classes:
        by_rank_class[id(rank_class)], turns = optimizer_marks(rank_class)
        if not turns.regular:
            notes.append("optimizers take turns in no fixed order, so a step ends with the last one")
        elif len(turns.iterations) and (batches := max(mark.batches for mark in by_rank_class[id(rank_class)])) > 1:
            notes.append(f"a step has {batches} optimizer turns")
    if any(by_rank_class.values()):
        return OPTIMIZER, by_rank_class, notes
    for source in (UPDATE, REDUCTION, BACKWARD):
        by_passes = {id(rank_class): pass_marks(rank_class, source) for rank_class in timeline.rank_classes}
        if any(by_passes.values()):
            return source, by_passes, []
    repeated = {id(rank_class): repetition_marks(rank_class) for rank_class in timeline.rank_classes}
    return (REPETITION, repeated, []) if any(repeated.values()) else (WHOLE_RUN, {}, [])


def warm_up_of(lengths: Sequence[int]) -> int:
    """How many steps at the beginning are warm-up: all up to the last one in the first half that differs from the later
    half, the steps after it that differ as well, and the first step of three or more."""
    if len(lengths) < 2:
        return 0
    half = len(lengths) // 2
    usual = median_low(lengths[half:])
    differs = [abs(length - usual) * _LIKE > usual for length in lengths]
    found = max((at + 1 for at in range(half) if differs[at]), default=0)
    while found and found < len(lengths) - 1 and differs[found]:
        found += 1
    return max(found, 1) if len(lengths) > 2 else found


def _beginning(timeline: Timeline) -> tuple[int, list[int]]:
    """When the job's first step begins, and for each replay group its first row in it."""
    first_of: dict[int, int | None] = {}
    for rank_class in timeline.rank_classes:
        begins = [
            item.kernel.kernel_class in TENSOR_CORE_CLASSES or item.kernel.kernel_class is KernelClass.EMBEDDING
            for item in rank_class.kernels
        ]
        found = np.flatnonzero(np.array(begins or [False])[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0))
        first_of[id(rank_class)] = int(found[0]) if len(found) else None
    rows = [first_of[id(group.rank_class)] for group in timeline.groups]
    starts = [int(group.start_ns[row, 0]) for group, row in zip(timeline.groups, rows, strict=True) if row is not None]
    return min(starts, default=0), [row or 0 for row in rows]


def _replayed(group: GroupTimeline, marks: Sequence[StepMark]) -> int:
    """How many steps the replay completed."""
    missing = (at for at, mark in enumerate(marks) if not group.reached[_rows_ending(mark)].all())
    return next(missing, len(marks))


def _rows_ending(mark: StepMark) -> Indices:
    """The rows whose latest end is the step's end."""
    rows = np.concatenate([np.arange(*span) for span in mark.spans])
    return rows if len(rows) else np.arange(mark.last)  # an optimizer that launched nothing: all rows before it


def _group_steps(group: GroupTimeline, marks: Sequence[StepMark], begin: int, first_row: int) -> GroupSteps:
    bounds = np.zeros(len(marks) + 1, dtype=np.int64)
    end = group.end_ns[:, 0]
    for step, mark in enumerate(marks):
        bounds[step + 1] = end[_rows_ending(mark)].max(initial=0)
    np.maximum.accumulate(bounds, out=bounds)
    bounds[0] = min(begin, bounds[1])
    ends = np.array([mark.last for mark in marks], dtype=np.intp)
    return GroupSteps(bounds, np.concatenate((np.array([min(first_row, int(ends[0]))], dtype=np.intp), ends)))


def _without_marks(group: GroupTimeline, latest: Integers) -> GroupSteps:
    """The steps of ranks without marks: those of the other ranks."""
    launched = np.maximum.accumulate(group.launched_ns[:, 0]) if len(group.launched_ns) else np.zeros(0, dtype=np.int64)
    return GroupSteps(latest, np.searchsorted(launched, latest))


def _whole_run(timeline: Timeline) -> Steps:
    groups = tuple(
        GroupSteps(
            np.array([0, int(timeline.end_ns[group.ranks[0]])], dtype=np.int64),
            np.array([0, len(group.rank_class.records)], dtype=np.intp),
        )
        for group in timeline.groups
    )
    length = int(timeline.end_ns.max(initial=0))
    note = "; ".join([f"{NO_STEPS}, so the whole run counts as one step", *recording_limits(timeline)])
    return Steps(WHOLE_RUN, (length,), 0, (), groups, note)


def recording_limits(timeline: Timeline) -> list[str]:
    """Where the recording ended, if the job went on; the longest for ranks that differ."""
    limits = [limit for each in timeline.rank_classes if (limit := each.trace.limit) is not None]
    if not limits:
        return []
    return [max(limits, key=lambda limit: (limit.recorded_steps, limit.steps, limit.operations)).text()]


def _no_whole_step(timeline: Timeline) -> str:
    reason = timeline.problems[0] if timeline.problems else "the replay did not reach the end of an optimizer step"
    return f"no step was recorded to its end: {reason}"


def _no_such_annotation(timeline: Timeline, name: str) -> str:
    known: set[str] = set()
    for rank_class in timeline.rank_classes:
        known |= {found.name for found in annotations_named(rank_class.trace, "", exact=False)}
    listed = (
        f"the traces have: {', '.join(sorted(known)[:20])}" if known else "make one with torch.profiler.record_function"
    )
    return f'no annotation "{name}" in the traces{did_you_mean(name, sorted(known))}; {listed}'
