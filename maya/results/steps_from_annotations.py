"""Ends of steps by annotations: those of torch.optim around optimizers, or those that the user names.

In: a `RankClass`. Out: `StepMark`s, one for each step, and which steps hold more than one batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

import numpy as np

from maya.replay.rank_class import RankClass
from maya.results.forward_backward import Passes, any_between, passes_of
from maya.results.optimizer_turns import Turns, find_turns
from maya.trace import Flag, RecordKind, Trace

_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"


@dataclass(frozen=True)
class StepMark:
    """The end of a step: rows that were launched inside the annotations that end it, as (first, last + 1)."""

    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    optimizers: tuple[Hashable, ...] = ()  # their numbers in the trace, or their names if it has no numbers
    is_graph: bool = False
    batches: int = 1  # forward passes, each followed by an optimizer of its own: a GAN's step has two

    @property
    def last(self) -> int:
        return self.spans[-1][1]


@dataclass(frozen=True)
class Annotation:
    """An annotation that has ended."""

    position: int  # of its record in the trace
    name: str
    began_ns: int  # host_ns
    optimizer: Hashable  # number or name of the optimizer, for annotations of torch.optim


def annotation_marks(rank_class: RankClass, steps_from: str) -> list[StepMark]:
    """Ends of steps by the user's annotations."""
    # torch.profiler numbers its steps: ProfilerStep#3.
    found = annotations_named(rank_class.trace, steps_from, exact=True)
    found = found or annotations_named(rank_class.trace, steps_from.rstrip("#") + "#", exact=False)
    return [StepMark((_rows_of(rank_class, one),), (one.name,)) for one in found]


def optimizer_marks(rank_class: RankClass) -> tuple[list[StepMark], Turns]:
    """Ends of steps by optimizers, and how the optimizers take turns."""
    passes = passes_of(rank_class)
    marks: list[StepMark] = []
    for annotation in _outermost(annotations_named(rank_class.trace, _STEP, exact=False)):
        span = _rows_of(rank_class, annotation)
        in_graph = _graph_marks(rank_class, annotation.position) if span[0] == span[1] else []
        if in_graph:
            marks = [mark for mark in marks if not mark.is_graph] + in_graph
        elif marks and passes.shows_training and not _trains_before(passes, marks[-1].last, span):
            marks[-1] = replace(
                marks[-1],
                spans=(*marks[-1].spans, span),
                names=(*marks[-1].names, annotation.name),
                optimizers=(*marks[-1].optimizers, annotation.optimizer),
            )
        else:
            marks.append(StepMark((span,), (annotation.name,), (annotation.optimizer,)))
    turns = find_turns(_stepping_together(marks))
    return [_joined(marks, iteration, passes) for iteration in turns.iterations], turns


def _trains_before(passes: Passes, last: int, span: tuple[int, int]) -> bool:
    """Whether a forward or backward pass ran between a row and an annotation, or backward was called inside the
    annotation, as some optimizers do."""
    return passes.trains_between(last, span[0]) or any_between(passes.backward, *span)


def _outermost(annotations: Sequence[Annotation]) -> list[Annotation]:
    """The annotations that are not inside others: an optimizer that wraps another one steps once."""
    found: list[Annotation] = []
    earliest: int | None = None
    for one in reversed(annotations):
        if earliest is None or one.began_ns < earliest:
            found.append(one)
            earliest = one.began_ns
    return found[::-1]


def _stepping_together(marks: Sequence[StepMark]) -> list[Hashable]:
    """For each mark one name that all optimizers share which ever stepped together, with no training between them."""
    leader: dict[Hashable, Hashable] = {}

    def find(one: Hashable) -> Hashable:
        while leader.setdefault(one, one) != one:
            one = leader[one]
        return one

    for mark in marks:
        for one in mark.optimizers[1:]:
            leader[find(one)] = find(mark.optimizers[0])
    return [find(mark.optimizers[0]) for mark in marks]


def _joined(marks: Sequence[StepMark], iteration: range, passes: Passes) -> StepMark:
    chosen = marks[iteration.start : iteration.stop]
    begin = marks[iteration.start - 1].last if iteration.start else 0
    ends = [begin, *(mark.last for mark in chosen)]
    batches = sum(any_between(passes.forward, first, last) for first, last in pairwise(ends))
    return StepMark(
        tuple(span for mark in chosen for span in mark.spans),
        tuple(name for mark in chosen for name in mark.names),
        tuple(one for mark in chosen for one in mark.optimizers),
        is_graph=chosen[-1].is_graph,
        batches=max(batches, 1),
    )


def skipped_steps(rank_class: RankClass, marks: Sequence[StepMark]) -> list[int]:
    """Steps with more than one batch: they set gradients to zero at least twice as often as usual."""
    passes = passes_of(rank_class)
    if not passes.shows_training or not marks:
        return []
    rows: list[int] = []
    for annotation in annotations_named(rank_class.trace, _ZERO_GRAD, exact=False):
        first, last = _rows_of(rank_class, annotation)
        if not rows or passes.trains_between(rows[-1], first):
            rows.append(last)
    per_step = np.diff(np.searchsorted(rows, [0, *(mark.last for mark in marks)])).tolist()
    usual = median_low(per_step[1:]) if len(per_step) > 1 else 0
    return [step for step, times in enumerate(per_step) if step and usual and times >= 2 * usual]


def annotations_named(trace: Trace, matches: str, *, exact: bool) -> list[Annotation]:
    """Annotations by name, in the order in which they ended."""
    positions = np.flatnonzero(trace.records["kind"] == RecordKind.ANNOTATION)
    numbers = trace.records["signature"][positions]
    signatures = {number: trace.signature(number) for number in np.unique(numbers).tolist()}
    found = []
    for position, number in zip(positions.tolist(), numbers.tolist(), strict=True):
        name = str(signatures[number].get("op", ""))
        if name == matches or (not exact and name.startswith(matches)):
            began = int(trace.records["host_ns"][position])
            found.append(Annotation(position, name, began, signatures[number].get("optimizer", name)))
    return found


def _rows_of(rank_class: RankClass, annotation: Annotation) -> tuple[int, int]:
    """The rows that were launched while an annotation was open: from the first number to before the second."""
    launched = rank_class.trace.records["host_ns"][rank_class.records]
    last = int(np.searchsorted(rank_class.records, annotation.position))
    return min(int(np.searchsorted(launched[:last], np.uint64(annotation.began_ns))), last), last


def _graph_marks(rank_class: RankClass, position: int) -> list[StepMark]:
    """Marks for an optimizer that launched nothing because a CUDA graph captured it: one for every launch of the next
    graph."""
    records = rank_class.trace.records
    launches = np.flatnonzero(records["kind"] == RecordKind.GRAPH_LAUNCH)
    launches = launches[launches > position]
    if not len(launches):
        return []
    number = records["value"][launches[0]]
    from_graph = (records["flags"][rank_class.records] & Flag.FROM_GRAPH) != 0
    others = np.append(np.flatnonzero(~from_graph), len(from_graph))
    marks = []
    for launch in launches[records["value"][launches] == number].tolist():
        first = int(np.searchsorted(rank_class.records, launch))
        following = np.flatnonzero(launches > launch)
        end = int(others[np.searchsorted(others, first)])
        if len(following):  # the kernels of the next graph follow immediately
            end = min(end, int(np.searchsorted(rank_class.records, launches[following[0]])))
        name = f"graph {number}"
        marks.append(StepMark(((first, end),), (name,), (name,), is_graph=True))
    return marks
