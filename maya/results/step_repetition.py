"""Steps of a program without optimizers and backward passes: what it repeats, as a loop over batches does.

In: a `RankClass`. Out: `StepMark`s, one for each repetition. Layers of one shape repeat as well, so the repetition has
to begin with something that a loop over batches has and a layer has not: a copy from or to the host, an embedding, or
random numbers other than dropout. It has to fill most of the run and occur at least three times; everything before it
(a first batch that is different) belongs to the first step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import KernelClass as WorkKind
from maya.estimators.models.bottleneck import TENSOR_KINDS
from maya.replay.rank_class import RankClass
from maya.results.step_marks import StepMark

REPETITION = "repetition"

_LEAST_TIMES = 3
_BATCH_KINDS = (WorkKind.TRANSFER, WorkKind.EMBEDDING, WorkKind.RANDOM)


def repetition_marks(rank_class: RankClass) -> list[StepMark]:
    """The ends of a program's repetitions; none if it does not repeat anything that has the shape of a step."""
    kinds = [item.work.kind for item in rank_class.kernels]
    heavy = _rows_of(rank_class, [kind in TENSOR_KINDS for kind in kinds])
    if not len(heavy):
        return []
    first, end = int(heavy[0]), int(heavy[-1]) + 1
    # Backwards, so that it does not matter whether the first batch is like the others.
    symbols = (
        rank_class.kernel[first:end].astype(np.int64) * (len(rank_class.calls) + 1) + rank_class.call[first:end]
    )[::-1]
    period, times = _period(symbols.tolist())
    begins_a_batch = _rows_of(
        rank_class,
        [item.work.kind in _BATCH_KINDS and "dropout" not in item.work.variant for item in rank_class.kernels],
    )
    if not times or not np.any((begins_a_batch >= end - period) & (begins_a_batch < end)):
        return []
    ends = [end - period * later for later in reversed(range(times))]
    return [StepMark(((last - period, last),), (REPETITION,)) for last in ends]


def _rows_of(rank_class: RankClass, chosen: list[bool]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.array(chosen or [False])[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0))


def _period(symbols: list[int]) -> tuple[int, int]:
    """(length, how many times) of the shortest beginning that repeats at once, often enough, over most of the whole;
    (0, 0) if there is none. In linear time: `same[i]` is for how long the symbols from i on are those from 0 on."""
    count = len(symbols)
    same = [0] * count
    left = right = 0  # the stretch that is known to be like the beginning and reaches furthest
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
