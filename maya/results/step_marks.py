"""What ends a step, in one program: optimizers, as torch.optim announces them, or annotations that the user names.

In: a `Program`. Out: `Mark`s, one for each step, and which steps hold more than one batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import numpy.typing as npt

from coordinator.timeline.timeline import Program
from maya.estimators.limits import TENSOR_KINDS
from maya.trace import Flag, Kind, Trace

_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"
_BACKWARD = re.compile(r"Backward\d*$|^torch::autograd::AccumulateGrad$|^CompiledFunctionBackward")
_MOST_OPTIMIZERS_IN_TURN = 8


@dataclass(frozen=True)
class Mark:
    """Annotations that end a step, as rows of program.records: launched from `first` on and before `last`."""

    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    is_graph: bool = False

    @property
    def last(self) -> int:
        return self.spans[-1][1]


def marks_of(program: Program, steps_from: str | None) -> list[Mark]:
    """The ends of a program's steps."""
    if steps_from is not None:
        # torch.profiler numbers its steps: ProfilerStep#3.
        found = annotations_named(program.trace, steps_from, exact=True)
        found = found or annotations_named(program.trace, steps_from.rstrip("#") + "#", exact=False)
        return [Mark((_rows_of(program, one),), (one[1],)) for one in found]
    trains = _training_rows(program)
    marks: list[Mark] = []
    for annotation in annotations_named(program.trace, _STEP, exact=False):
        span = _rows_of(program, annotation)
        in_graph = _graph_marks(program, annotation[0]) if span[0] == span[1] else []
        if in_graph:
            marks = [mark for mark in marks if not mark.is_graph] + in_graph
        elif marks and trains is not None and not trains.between(marks[-1].last, span):
            marks[-1] = Mark((*marks[-1].spans, span), (*marks[-1].names, annotation[1]))
        else:
            marks.append(Mark((span,), (annotation[1],)))
    turns = _turns(program, marks)
    return [mark for at, mark in enumerate(marks) if (len(marks) - 1 - at) % turns == 0]


def skipped_steps(program: Program, marks: Sequence[Mark], steps_from: str | None) -> list[int]:
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


def _graph_marks(program: Program, position: int) -> list[Mark]:
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
        marks.append(Mark(((first, end),), (f"graph {number}",), is_graph=True))
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


def _turns(program: Program, marks: Sequence[Mark]) -> int:
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
