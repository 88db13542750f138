"""What ends a step where no optimizer of torch.optim does: backward passes, and what shows that weights were updated.

In: a `RankClass`. Out: `StepMark`s. A backward pass is all that runs inside of autograd's nodes with no forward pass
between. Of the passes, those end a step after which weights are updated in place by hand (`p -= lr * p.grad`), or, if
none are, those whose gradients are reduced (DDP outside of no_sync, FSDP), or else all of them. A few elements do not
count beside many: a loss that is added up, or reduced for a log line, is no update.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.replay.rank_class import RankClass
from maya.results.passes import Passes, Rows, in_backward, passes_of
from maya.results.step_marks import StepMark
from maya.results.step_repetition import REPETITION
from maya.trace import RecordKind

UPDATE, REDUCTION, BACKWARD = "update", "gradient reduction", "backward"

MEANINGS = {
    UPDATE: "steps by in-place updates after backward passes, without torch.optim",
    REDUCTION: "steps by gradient reductions, without torch.optim",
    BACKWARD: "a step for every backward pass, without torch.optim or gradient reductions (or use --steps-from NAME)",
    REPETITION: "steps by what the trace repeats, without torch.optim or backward passes (or use --steps-from NAME)",
}

_UPDATE = re.compile(r"^aten::(_foreach_)?(add|sub|addcdiv|addcmul|lerp|mul|div)_$")
_REDUCTIONS = frozenset({"ncclAllReduce", "ncclReduceScatter", "ncclReduce"})


def pass_marks(rank_class: RankClass, source: str) -> list[StepMark]:
    """The ends of a program's steps by one of the sources; none if the program does not show it."""
    passes = passes_of(rank_class)
    bounds = _bounds(rank_class, passes)
    if source == BACKWARD:
        return [StepMark(((first, last),), (source,)) for first, last, _ in bounds]
    rows, sizes = _updates(rank_class) if source == UPDATE else _reductions(rank_class)
    # Updates come after the pass; gradients are reduced during it and after it.
    places = [np.searchsorted(rows, (last if source == UPDATE else first, end)) for first, last, end in bounds]
    weights = [int(sizes[begin:end].sum()) for begin, end in places]
    most = max(weights, default=0)
    marks = []
    for (first, last, _), (begin, end), weight in zip(bounds, places, weights, strict=True):
        if most and 2 * weight >= most:
            large = rows[begin:end][2 * sizes[begin:end] >= sizes[begin:end].max()]
            marks.append(StepMark(((first, max(last, int(large[-1]) + 1)),), (source,)))
    return marks


def _bounds(rank_class: RankClass, passes: Passes) -> list[tuple[int, int, int]]:
    """Of each backward pass: its first row, the one after its last, and where the next forward pass begins."""
    before = np.searchsorted(passes.forward, passes.backward)
    found = []
    for number in np.unique(before).tolist():
        rows = passes.backward[before == number]
        end = int(passes.forward[number]) if number < len(passes.forward) else len(rank_class.records)
        found.append((int(rows[0]), int(rows[-1]) + 1, end))
    return found


def _updates(rank_class: RankClass) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Rows that change tensors in place outside of autograd's nodes, and how many elements they change."""
    trace = rank_class.trace
    positions = np.flatnonzero(trace.records["kind"] == RecordKind.OP)
    numbers = trace.records["signature"][positions]
    elements = {number: _changed(trace.signature(number)) for number in np.unique(numbers).tolist()}
    sizes = np.array([elements[number] for number in numbers.tolist()], dtype=np.int64)
    chosen = (sizes > 0) & ~in_backward(trace, trace.records["op"][positions])
    # An op is recorded when it ends: after what it launched.
    return np.searchsorted(rank_class.records, positions[chosen]) - 1, sizes[chosen]


def _changed(signature: dict[str, Any]) -> int:
    inputs = signature.get("inputs")
    if not inputs or not _UPDATE.search(str(signature.get("op", ""))):
        return 0
    first = inputs[0] if isinstance(inputs[0], list) else [inputs[0]]
    return sum(prod(one["shape"]) for one in first if isinstance(one, dict) and "shape" in one)


def _reductions(rank_class: RankClass) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Rows that reduce something, and how many elements of it."""
    counts = [call.count if call.call in _REDUCTIONS else 0 for call in rank_class.calls]
    sizes = np.where(rank_class.call >= 0, np.array(counts or [0])[np.maximum(rank_class.call, 0)], 0)
    rows = np.flatnonzero(sizes)
    return rows, sizes[rows].astype(np.int64)
