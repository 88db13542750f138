"""Training steps, found without help from the script.

In: a `Timeline`. Out: `Steps`: for every rank when its steps began and ended. A step ends when the last work of its
optimizers ends on the device (`Optimizer.step#…` annotations of torch.optim; optimizers that follow each other
without a backward pass between them belong to one step, and so do those that take turns, as in a GAN: step_turns).
Where no rank has an optimizer, backward passes make the steps, and what shows that weights were updated after them
(step_passes); without these, what the program repeats (step_repetition). Else the whole run is one span. With
`steps_from`, annotations of that name mark the steps instead. An optimizer that was captured into a CUDA graph makes
a step of every launch of the graph.

A step begins where the one before ended; the first begins with the first matrix product, attention, convolution or
embedding of the job. What differs in length from the later steps is warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import KernelClass as WorkKind
from maya.estimators.models.bottleneck import TENSOR_KINDS
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.step_marks import StepMark, annotation_marks, annotations_named, optimizer_marks, skipped_steps
from maya.results.step_passes import BACKWARD, REDUCTION, UPDATE, pass_marks
from maya.results.step_repetition import REPETITION, repetition_marks
from maya.util.suggestions import did_you_mean

Times = npt.NDArray[np.int64]

OPTIMIZER, WHOLE_RUN = "optimizer", "run"
NO_STEPS = "no optimizer, no backward pass and no repetition was found"

_LIKE = 20  # a step that differs by no more than one part in so many is like another


@dataclass(frozen=True, eq=False)
class GroupSteps:
    """The steps of the ranks of a class: boundary k is where step k begins and the one before it ends."""

    bounds_ns: Times  # of each boundary; the same for all ranks of the class
    rows: npt.NDArray[np.intp]  # of each boundary: the first of rank_class.records that is launched after it


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a job."""

    source: str  # OPTIMIZER, UPDATE, REDUCTION, BACKWARD, REPETITION, WHOLE_RUN, or the name of the annotation
    lengths_ns: tuple[int, ...]  # of each step, for the job: from one end of the last rank to the next
    warm_up: int  # steps at the beginning that are no measure
    skipped: tuple[int, ...]  # steps that hold batches after which the optimizer was not called (a gradient scaler)
    groups: tuple[GroupSteps, ...]  # of each of timeline.groups
    note: str = ""
    whole_steps: Mapping[int, int] = field(default_factory=dict)  # by rank, those that its trace holds
    batches: int = 1  # forward passes in a step that an optimizer of its own follows

    @property
    def count(self) -> int:
        return len(self.lengths_ns)

    @property
    def measured(self) -> tuple[int, ...]:
        """The numbers of the steps that count."""
        late = [step for step in range(self.warm_up, self.count) if step not in self.skipped]
        return tuple(late or range(self.warm_up, self.count))

    @property
    def typical(self) -> int:
        """The measured step of median length: what is shown where only one can be."""
        return min(self.measured, key=lambda step: (abs(self.lengths_ns[step] - self.median_ns), step))

    @property
    def median_ns(self) -> int:
        """Of the measured steps."""
        return median_low([self.lengths_ns[step] for step in self.measured])


def find_steps(timeline: Timeline, steps_from: str | None = None) -> Steps:
    """The steps of all ranks."""
    source, by_rank_class, notes = _marks(timeline, steps_from)
    if source == WHOLE_RUN:
        if any(rank_class.trace.remedy for rank_class in timeline.rank_classes):
            raise ValueError(_no_whole_step(timeline))
        return _whole_run(timeline)
    marks = [by_rank_class[id(one.rank_class)] for one in timeline.groups]
    counts = [len(found) for found in marks if found]
    if source == REPETITION:  # they are found from the end on, so that a rank may lack some at the beginning
        marks = [found[-min(counts) :] for found in marks]
    count = min(_replayed(one, found) for one, found in zip(timeline.groups, marks, strict=True) if found)
    if not count:
        raise ValueError(_no_whole_step(timeline))
    begin, first_rows = _beginning(timeline)
    classes: list[GroupSteps | None] = [
        _class_steps(one, found[:count], begin, row) if found else None
        for one, found, row in zip(timeline.groups, marks, first_rows, strict=True)
    ]
    latest: Times = np.max(np.stack([one.bounds_ns for one in classes if one is not None]), axis=0)
    complete = tuple(
        one if one is not None else _without_marks(of, latest) for one, of in zip(classes, timeline.groups, strict=True)
    )
    lengths = tuple(np.diff(latest).tolist())
    skipped: set[int] = set()
    if source == OPTIMIZER:
        for rank_class in timeline.rank_classes:
            skipped.update(skipped_steps(rank_class, by_rank_class[id(rank_class)][:count]))
    if len(set(counts)) > 1:
        notes.append(f"ranks made {min(counts)} to {max(counts)} steps; the first {count} count")
    whole_steps = {
        rank: len(found) for one, found in zip(timeline.groups, marks, strict=True) for rank in one.ranks.tolist()
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
    """What the steps are found by, the marks of each rank_class, and what there is to say about them."""
    if steps_from is not None:
        by_user = {id(rank_class): annotation_marks(rank_class, steps_from) for rank_class in timeline.rank_classes}
        if not any(by_user.values()):
            cut = any(rank_class.trace.remedy for rank_class in timeline.rank_classes)
            raise ValueError(_no_whole_step(timeline) if cut else _no_such_annotation(timeline, steps_from))
        return steps_from, by_user, []
    by_rank_class: dict[int, list[StepMark]] = {}
    notes: list[str] = []
    for rank_class in timeline.rank_classes:
        by_rank_class[id(rank_class)], turns = optimizer_marks(rank_class)
        if not turns.regular:
            notes.append("optimizers take turns in no fixed order, so a step ends with the one that comes last")
        elif len(turns.iterations) and (batches := max(mark.batches for mark in by_rank_class[id(rank_class)])) > 1:
            notes.append(f"a step has {batches} turns of optimizers")
    if any(by_rank_class.values()):
        return OPTIMIZER, by_rank_class, notes
    for source in (UPDATE, REDUCTION, BACKWARD):
        by_passes = {id(rank_class): pass_marks(rank_class, source) for rank_class in timeline.rank_classes}
        if any(by_passes.values()):
            return source, by_passes, []
    repeated = {id(rank_class): repetition_marks(rank_class) for rank_class in timeline.rank_classes}
    return (REPETITION, repeated, []) if any(repeated.values()) else (WHOLE_RUN, {}, [])


def warm_up_of(lengths: Sequence[int]) -> int:
    """How many steps at the beginning are no measure: up to the last one of the first half that is unlike the later
    half, those after it that are unlike too, and the first of three or more."""
    if len(lengths) < 2:
        return 0
    half = len(lengths) // 2
    usual = median_low(lengths[half:])
    unlike = [abs(length - usual) * _LIKE > usual for length in lengths]
    found = max((at + 1 for at in range(half) if unlike[at]), default=0)
    while found and found < len(lengths) - 1 and unlike[found]:
        found += 1
    return max(found, 1) if len(lengths) > 2 else found


def _beginning(timeline: Timeline) -> tuple[int, list[int]]:
    """When the job's first step begins, and for each class its first row in it."""
    first_of: dict[int, int | None] = {}
    for rank_class in timeline.rank_classes:
        begins = [item.work.kind in TENSOR_KINDS or item.work.kind is WorkKind.EMBEDDING for item in rank_class.kernels]
        found = np.flatnonzero(np.array(begins or [False])[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0))
        first_of[id(rank_class)] = int(found[0]) if len(found) else None
    rows = [first_of[id(one.rank_class)] for one in timeline.groups]
    starts = [int(one.start_ns[row, 0]) for one, row in zip(timeline.groups, rows, strict=True) if row is not None]
    return min(starts, default=0), [row or 0 for row in rows]


def _replayed(one: GroupTimeline, marks: Sequence[StepMark]) -> int:
    """How many steps were replayed to their ends."""
    missing = (at for at, mark in enumerate(marks) if not one.reached[_rows_ending(mark)].all())
    return next(missing, len(marks))


def _rows_ending(mark: StepMark) -> npt.NDArray[np.intp]:
    """Rows whose end is the step's end."""
    rows = np.concatenate([np.arange(*span) for span in mark.spans])
    return rows if len(rows) else np.arange(mark.last)  # an optimizer that asked nothing of the device: all before it


def _class_steps(one: GroupTimeline, marks: Sequence[StepMark], begin: int, first_row: int) -> GroupSteps:
    bounds = np.zeros(len(marks) + 1, dtype=np.int64)
    end = one.end_ns[:, 0]
    for step, mark in enumerate(marks):
        bounds[step + 1] = end[_rows_ending(mark)].max(initial=0)
    np.maximum.accumulate(bounds, out=bounds)
    bounds[0] = min(begin, bounds[1])
    ends = np.array([mark.last for mark in marks], dtype=np.intp)
    return GroupSteps(bounds, np.concatenate((np.array([min(first_row, int(ends[0]))], dtype=np.intp), ends)))


def _without_marks(one: GroupTimeline, latest: Times) -> GroupSteps:
    """Ranks that mark no steps take part in the steps of the others."""
    launched = np.maximum.accumulate(one.launched_ns[:, 0]) if len(one.launched_ns) else np.zeros(0, dtype=np.int64)
    return GroupSteps(latest, np.searchsorted(launched, latest))


def _whole_run(timeline: Timeline) -> Steps:
    classes = tuple(
        GroupSteps(
            np.array([0, int(timeline.end_ns[one.ranks[0]])], dtype=np.int64),
            np.array([0, len(one.rank_class.records)], dtype=np.intp),
        )
        for one in timeline.groups
    )
    length = int(timeline.end_ns.max(initial=0))
    return Steps(WHOLE_RUN, (length,), 0, (), classes, f"{NO_STEPS}, so the whole run counts as one step")


def _no_whole_step(timeline: Timeline) -> str:
    reason = timeline.problems[0] if timeline.problems else "the replay came to no optimizer's end"
    return f"no step was recorded to its end: {reason}"


def _no_such_annotation(timeline: Timeline, name: str) -> str:
    known: set[str] = set()
    for rank_class in timeline.rank_classes:
        known |= {found.name for found in annotations_named(rank_class.trace, "", exact=False)}
    listed = f"there are: {', '.join(sorted(known)[:20])}" if known else "torch.profiler.record_function makes them"
    return f'no annotation "{name}" in the traces{did_you_mean(name, sorted(known))}; {listed}'
