"""Ends of steps in a run without optimizers and backward passes: repetitions, as a loop over batches makes them.

In: a `RankClass`. Out: `StepMark`s, one for each repetition. Layers of one shape repeat as well, so the repetition has
to begin with something that a loop over batches has and a layer has not: a copy from or to the host, an embedding, or
random numbers other than dropout. It has to fill most of the run and occur at least three times; everything before it
(a first batch that is different) belongs to the first step.
"""

from __future__ import annotations

import numpy as np

from maya.estimators.kernel import KernelClass
from maya.estimators.models.bottleneck import TENSOR_CORE_CLASSES
from maya.replay.rank_class import RankClass
from maya.results.steps_from_annotations import StepMark
from maya.util.arrays import Indices

REPETITION = "repetition"

_LEAST_TIMES = 3
_BATCH_CLASSES = (KernelClass.TRANSFER, KernelClass.EMBEDDING, KernelClass.RANDOM)


def repetition_marks(rank_class: RankClass) -> list[StepMark]:
    """The ends of repetitions; empty if nothing repeats that has the shape of a step."""
    classes = [item.kernel.kernel_class for item in rank_class.kernels]
    heavy = _rows_of(rank_class, [each in TENSOR_CORE_CLASSES for each in classes])
    if not len(heavy):
        return []
    first, end = int(heavy[0]), int(heavy[-1]) + 1
    # Backwards, because the first batch may differ from the others.
    symbols = (
        rank_class.kernel[first:end].astype(np.int64) * (len(rank_class.calls) + 1) + rank_class.call[first:end]
    )[::-1]
    period, times = _period(symbols.tolist())
    begins_a_batch = _rows_of(
        rank_class,
        [
            item.kernel.kernel_class in _BATCH_CLASSES and "dropout" not in item.kernel.variant
            for item in rank_class.kernels
        ],
    )
    if not times or not np.any((begins_a_batch >= end - period) & (begins_a_batch < end)):
        return []
    ends = [end - period * later for later in reversed(range(times))]
    return [StepMark(((last - period, last),), (REPETITION,)) for last in ends]


def _rows_of(rank_class: RankClass, chosen: list[bool]) -> Indices:
    return np.flatnonzero(np.array(chosen or [False])[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0))


def _period(symbols: list[int]) -> tuple[int, int]:
    """(length, repetitions) of the shortest prefix that repeats without a gap, often enough, over most of the symbols;
    (0, 0) if there is none. In linear time (Z algorithm): `same[i]` is the length of the longest common prefix of the
    symbols from i on and those from 0 on."""
    count = len(symbols)
    same = [0] * count
    left = right = 0  # the interval that equals a prefix and reaches furthest
    for at in range(1, count // _LEAST_TIMES + 1):
        length = min(right - at, same[at - left]) if at < right else 0
        while at + length < count and symbols[length] == symbols[at + length]:
            length += 1
        same[at] = length
        if at + length > right:
            left, right = at, at + length
        if (at + length) // at >= _LEAST_TIMES and 2 * (at + length) >= count:
            return at, (at + length) // at
    return 0, 0
