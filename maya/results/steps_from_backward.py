"""Ends of steps where no optimizer of torch.optim runs: backward passes, and signs that weights were updated.

In: a `RankClass`. Out: `StepMark`s. A backward pass is everything that runs inside autograd's nodes with no forward
pass between. A backward pass ends a step if weights are updated in place after it (`p -= lr * p.grad`). If none has
such an update, those end a step whose gradients are reduced (DDP outside of no_sync, FSDP); failing that, all do.
Updates and reductions of few elements do not count beside large ones: summing up a loss, or reducing it for a log line,
is not an update.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np

from maya.replay.rank_class import RankClass
from maya.results.forward_backward import Passes, in_backward, passes_of
from maya.results.steps_from_annotations import StepMark
from maya.results.steps_from_repetition import REPETITION
from maya.trace import RecordKind
from maya.util.arrays import Indices, Integers

UPDATE, REDUCTION, BACKWARD = "update", "gradient reduction", "backward"

MEANINGS = {
    UPDATE: "steps end at in-place updates after backward passes: the script does not use torch.optim",
    REDUCTION: "steps end at gradient reductions: the script does not use torch.optim",
    BACKWARD: "every backward pass is a step: no torch.optim and no gradient reductions (or use --steps-from NAME)",
    REPETITION: "steps are repetitions in the trace: no torch.optim and no backward passes (or use --steps-from NAME)",
}

_UPDATE = re.compile(r"^aten::(_foreach_)?(add|sub|addcdiv|addcmul|lerp|mul|div)_$")
_REDUCTIONS = frozenset({"ncclAllReduce", "ncclReduceScatter", "ncclReduce"})


def pass_marks(rank_class: RankClass, source: str) -> list[StepMark]:
    """Ends of steps by one of the sources; empty if the trace does not show it."""
    passes = passes_of(rank_class)
    bounds = _bounds(rank_class, passes)
    if source == BACKWARD:
        return [StepMark(((first, last),), (source,)) for first, last, _ in bounds]
    rows, sizes = _updates(rank_class) if source == UPDATE else _reductions(rank_class)
    # Updates follow the pass; gradients are reduced during it and after it.
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
    """For each backward pass: its first row, the row after its last, and where the next forward pass begins."""
    before = np.searchsorted(passes.forward, passes.backward)
    found = []
    for number in np.unique(before).tolist():
        rows = passes.backward[before == number]
        end = int(passes.forward[number]) if number < len(passes.forward) else len(rank_class.records)
        found.append((int(rows[0]), int(rows[-1]) + 1, end))
    return found


def _updates(rank_class: RankClass) -> tuple[Indices, Integers]:
    """Rows of ops that change tensors in place outside autograd's nodes, and how many elements each changes."""
    trace = rank_class.trace
    positions = np.flatnonzero(trace.records["kind"] == RecordKind.OP)
    numbers = trace.records["signature"][positions]
    elements = {number: _changed(trace.signature(number)) for number in np.unique(numbers).tolist()}
    sizes = np.array([elements[number] for number in numbers.tolist()], dtype=np.int64)
    chosen = (sizes > 0) & ~in_backward(trace, trace.records["op"][positions])
    # An op is recorded when it ends: after its kernels.
    return np.searchsorted(rank_class.records, positions[chosen]) - 1, sizes[chosen]


def _changed(signature: dict[str, Any]) -> int:
    inputs = signature.get("inputs")
    if not inputs or not _UPDATE.search(str(signature.get("op", ""))):
        return 0
    first = inputs[0] if isinstance(inputs[0], list) else [inputs[0]]
    return sum(prod(one["shape"]) for one in first if isinstance(one, dict) and "shape" in one)


def _reductions(rank_class: RankClass) -> tuple[Indices, Integers]:
    """Rows of reductions, and how many elements each reduces."""
    counts = [call.count if call.call in _REDUCTIONS else 0 for call in rank_class.calls]
    sizes = np.where(rank_class.call >= 0, np.array(counts or [0])[np.maximum(rank_class.call, 0)], 0)
    rows = np.flatnonzero(sizes)
    return rows, sizes[rows].astype(np.int64)
