"""Training steps, found without help from the script: by what torch.optim announces.

In: a `Timeline`. Out: `Steps`: for every rank when its steps began and ended. A step ends when the last work of its
optimizers ends on the device (`Optimizer.step#…` annotations; optimizers that follow each other without a backward pass
between them belong to one step, and so do those that take turns, as in a GAN). It begins where the one before ended;
the first begins with the first matrix product, attention, convolution or embedding of the job. What differs in length
from the later steps is warm-up. Without an optimizer the whole run is one span. With `steps_from`, annotations of that
name mark the steps instead. An optimizer that was captured into a CUDA graph makes a step of every launch of the graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt

from coordinator.timeline.timeline import ClassTimeline, Program, Timeline
from maya.estimators.limits import TENSOR_KINDS
from maya.estimators.work import Kind as WorkKind
from maya.trace import Flag, Kind, Trace
from netmodel.settings_file import did_you_mean

Times = npt.NDArray[np.int64]

OPTIMIZER, WHOLE_RUN = "optimizer", "run"

_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"
_BACKWARD = re.compile(r"Backward\d*$|^torch::autograd::AccumulateGrad$|^CompiledFunctionBackward")
_MOST_OPTIMIZERS_IN_TURN = 8
_LIKE = 20  # a step that differs by no more than one part in so many is like another


@dataclass(frozen=True, eq=False)
class ClassSteps:
    """The steps of the ranks of a class: boundary k is where step k begins and the one before it ends."""

    bounds_ns: Times  # of each boundary; the same for all ranks of the class
    rows: npt.NDArray[np.intp]  # of each boundary: the first of program.records that is launched after it


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a job."""

    source: str  # OPTIMIZER, WHOLE_RUN, or the name of the annotation
    lengths_ns: tuple[int, ...]  # of each step, for the job: from one end of the last rank to the next
    warm_up: int  # steps at the beginning that are no measure
    skipped: tuple[int, ...]  # steps that hold batches after which the optimizer was not called (a gradient scaler)
    classes: tuple[ClassSteps, ...]  # of each of timeline.classes
    note: str = ""

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


@dataclass(frozen=True)
class _Mark:
    """Annotations that end a step, as rows of program.records: launched from `first` on and before `last`."""

    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    is_graph: bool = False

    @property
    def last(self) -> int:
        return self.spans[-1][1]


def find_steps(timeline: Timeline, steps_from: str | None = None) -> Steps:
    """The steps of all ranks."""
    programs = [one.program for one in timeline.classes]
    of_program = {id(program): _marks(program, steps_from) for program in timeline.programs}
    marks = [of_program[id(program)] for program in programs]
    counts = [len(found) for found in marks if found]
    if steps_from is not None and not counts:
        raise ValueError(_no_such_annotation(timeline, steps_from))
    if not counts:
        return _whole_run(timeline)
    count = min(counts)
    begin, first_rows = _beginning(timeline)
    classes: list[ClassSteps | None] = [
        _class_steps(one, found[:count], begin, row) if found else None
        for one, found, row in zip(timeline.classes, marks, first_rows, strict=True)
    ]
    latest = np.max([one.bounds_ns for one in classes if one is not None], axis=0)
    complete = tuple(
        one if one is not None else _without_optimizer(of, latest)
        for one, of in zip(classes, timeline.classes, strict=True)
    )
    lengths = tuple(np.diff(latest).tolist())
    skipped = {
        step for program in timeline.programs for step in _skipped(program, of_program[id(program)][:count], steps_from)
    }
    note = "" if len(set(counts)) == 1 else f"ranks made {min(counts)} to {max(counts)} steps; the first {count} count"
    return Steps(steps_from or OPTIMIZER, lengths, warm_up_of(lengths), tuple(sorted(skipped)), complete, note)


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


def annotations_named(trace: Trace, matches: str, *, exact: bool) -> list[tuple[int, str, int]]:
    """(position of the record, name, host_ns of the beginning) of annotations, in the order in which they ended."""
    positions = np.flatnonzero(trace.records["kind"] == Kind.ANNOTATION)
    numbers = trace.records["signature"][positions]
    names = {number: str(trace.signature(number).get("op", "")) for number in np.unique(numbers).tolist()}
    found = []
    for position, number in zip(positions.tolist(), numbers.tolist(), strict=True):
        name = names[number]
        if name == matches or (not exact and name.startswith(matches)):
            found.append((position, name, int(trace.records["host_ns"][position])))
    return found


def _rows_of(program: Program, annotation: tuple[int, str, int]) -> tuple[int, int]:
    """What was launched while an annotation was open: rows of program.records from the first to before the second."""
    position, _, began = annotation
    launched = program.trace.records["host_ns"][program.records]
    last = int(np.searchsorted(program.records, position))
    return min(int(np.searchsorted(launched[:last], np.uint64(began))), last), last


def _marks(program: Program, steps_from: str | None) -> list[_Mark]:
    if steps_from is not None:
        # torch.profiler numbers its steps: ProfilerStep#3.
        found = annotations_named(program.trace, steps_from, exact=True)
        found = found or annotations_named(program.trace, steps_from.rstrip("#") + "#", exact=False)
        return [_Mark((_rows_of(program, one),), (one[1],)) for one in found]
    trains = _training_rows(program)
    marks: list[_Mark] = []
    for annotation in annotations_named(program.trace, _STEP, exact=False):
        span = _rows_of(program, annotation)
        in_graph = _graph_marks(program, annotation[0]) if span[0] == span[1] else []
        if in_graph:
            marks = [mark for mark in marks if not mark.is_graph] + in_graph
        elif marks and trains is not None and not trains.between(marks[-1].last, span):
            marks[-1] = _Mark((*marks[-1].spans, span), (*marks[-1].names, annotation[1]))
        else:
            marks.append(_Mark((span,), (annotation[1],)))
    turns = _turns(program, marks)
    return [mark for at, mark in enumerate(marks) if (len(marks) - 1 - at) % turns == 0]


def _graph_marks(program: Program, position: int) -> list[_Mark]:
    """An optimizer that launched nothing was captured into a CUDA graph: every launch of the next graph is its step."""
    records = program.trace.records
    launches = np.flatnonzero(records["kind"] == Kind.GRAPH_LAUNCH)
    launches = launches[launches > position]
    if not len(launches):
        return []
    number = records["value"][launches[0]]
    from_graph = (records["flags"][program.records] & Flag.FROM_GRAPH) != 0
    others = np.append(np.flatnonzero(~from_graph), len(from_graph))
    marks = []
    for launch in launches[records["value"][launches] == number].tolist():
        first = int(np.searchsorted(program.records, launch))
        following = np.flatnonzero(launches > launch)
        end = int(others[np.searchsorted(others, first)])
        if len(following):  # the works of the next graph follow at once
            end = min(end, int(np.searchsorted(program.records, launches[following[0]])))
        marks.append(_Mark(((first, end),), (f"graph {number}",), is_graph=True))
    return marks


@dataclass(frozen=True, eq=False)
class _Training:
    """Rows that show a forward or backward pass, in order."""

    rows: npt.NDArray[np.intp]
    backward: npt.NDArray[np.intp]  # of these, those of a backward pass

    def between(self, last: int, span: tuple[int, int]) -> bool:
        """Whether something was trained between a row and an annotation, or backward was called from the annotation:
        some optimizers want to do that themselves."""
        return _any_between(self.rows, last, span[0]) or _any_between(self.backward, *span)


def _training_rows(program: Program) -> _Training | None:
    """None: the trace does not tell."""
    of_work = np.array([item.work.kind in TENSOR_KINDS for item in program.works] or [False], dtype=bool)
    heavy = np.flatnonzero(of_work[np.maximum(program.work, 0)] & (program.work >= 0))
    records = program.trace.records
    positions = np.flatnonzero(records["kind"] == Kind.OP)
    numbers = records["signature"][positions]
    backward = [
        number
        for number in np.unique(numbers).tolist()
        if _BACKWARD.search(str(program.trace.signature(number).get("op", "")))
    ]
    ended = np.searchsorted(program.records, positions[np.isin(numbers, backward)]) - 1
    ended = np.unique(ended[ended >= 0])
    rows = np.unique(np.concatenate((heavy, ended)))
    return _Training(rows, ended) if len(rows) else None


def _any_between(rows: npt.NDArray[np.intp], first: int, last: int) -> bool:
    return bool(np.searchsorted(rows, first) < np.searchsorted(rows, last))


def _turns(program: Program, marks: Sequence[_Mark]) -> int:
    """How many optimizers take turns: the period of what the marks do; 1 if there is none.

    The first of all is left out, because optimizers make their state in it.
    """
    does = []
    for mark in marks:
        rows = np.concatenate([np.arange(*span) for span in mark.spans])
        does.append((mark.names, tuple(sorted(Counter(program.work[rows].tolist()).items()))))
    for period in range(1, min(_MOST_OPTIMIZERS_IN_TURN, (len(marks) - 1) // 2) + 1):
        repeats = all(one == other for one, other in zip(does[period:], does[2 * period :], strict=False))
        if repeats and (period == 1 or len(set(does[-period:])) > 1):
            return period
    return 1


def _skipped(program: Program, marks: Sequence[_Mark], steps_from: str | None) -> list[int]:
    """Steps with more than one batch in them: gradients were set to zero twice as often as usual, or more."""
    trains = _training_rows(program)
    if trains is None or not marks or steps_from is not None:
        return []
    rows: list[int] = []
    for annotation in annotations_named(program.trace, _ZERO_GRAD, exact=False):
        first, last = _rows_of(program, annotation)
        if not rows or _any_between(trains.rows, rows[-1], first):
            rows.append(last)
    ends = [mark.last for mark in marks]
    per_step = [sum(before <= row < end for row in rows) for before, end in zip([0, *ends[:-1]], ends, strict=True)]
    usual = median_low(per_step[1:]) if len(per_step) > 1 else 0
    return [step for step, times in enumerate(per_step) if step and usual and times >= 2 * usual]


def _beginning(timeline: Timeline) -> tuple[int, list[int]]:
    """When the job's first step begins, and for each class its first row in it."""
    first_of: dict[int, int | None] = {}
    for program in timeline.programs:
        begins = [item.work.kind in TENSOR_KINDS or item.work.kind is WorkKind.EMBEDDING for item in program.works]
        found = np.flatnonzero(np.array(begins or [False])[np.maximum(program.work, 0)] & (program.work >= 0))
        first_of[id(program)] = int(found[0]) if len(found) else None
    rows = [first_of[id(one.program)] for one in timeline.classes]
    starts = [int(one.start_ns[row, 0]) for one, row in zip(timeline.classes, rows, strict=True) if row is not None]
    return min(starts, default=0), [row or 0 for row in rows]


def _class_steps(one: ClassTimeline, marks: Sequence[_Mark], begin: int, first_row: int) -> ClassSteps:
    bounds = np.zeros(len(marks) + 1, dtype=np.int64)
    end = one.end_ns[:, 0]
    for step, mark in enumerate(marks):
        rows = np.concatenate([np.arange(*span) for span in mark.spans])
        if not len(rows):  # an optimizer that asked nothing of the device: all that was launched before it
            rows = np.arange(mark.last)
        bounds[step + 1] = end[rows].max(initial=0)
    np.maximum.accumulate(bounds, out=bounds)
    bounds[0] = min(begin, bounds[1])
    ends = np.array([mark.last for mark in marks], dtype=np.intp)
    return ClassSteps(bounds, np.concatenate((np.array([min(first_row, int(ends[0]))], dtype=np.intp), ends)))


def _without_optimizer(one: ClassTimeline, latest: Times) -> ClassSteps:
    """Ranks that have no optimizer take part in the steps of the others."""
    launched = np.maximum.accumulate(one.launched_ns[:, 0]) if len(one.launched_ns) else np.zeros(0, dtype=np.int64)
    return ClassSteps(latest, np.searchsorted(launched, latest))


def _whole_run(timeline: Timeline) -> Steps:
    classes = tuple(
        ClassSteps(
            np.array([0, int(timeline.end_ns[one.ranks[0]])], dtype=np.int64),
            np.array([0, len(one.program.records)], dtype=np.intp),
        )
        for one in timeline.classes
    )
    length = int(timeline.end_ns.max(initial=0))
    return Steps(WHOLE_RUN, (length,), 0, (), classes, "no optimizer was used, so the whole run counts as one step")


def _no_such_annotation(timeline: Timeline, name: str) -> str:
    known: set[str] = set()
    for program in timeline.programs:
        known |= {found[1] for found in annotations_named(program.trace, "", exact=False)}
    listed = f"there are: {', '.join(sorted(known)[:20])}" if known else "torch.profiler.record_function makes them"
    return f'no annotation "{name}" in the traces{did_you_mean(name, sorted(known))}; {listed}'
