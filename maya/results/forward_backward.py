"""Forward and backward passes of a rank class.

In: a `RankClass`. Out: the rows that were launched inside autograd's nodes (backward), and the GEMMs, attention,
convolutions and embeddings outside them (forward). Recomputation for activation checkpointing runs inside nodes, so it
is part of the backward pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import KernelClass
from maya.estimators.models.bottleneck import TENSOR_CORE_CLASSES
from maya.replay.rank_class import RankClass, once_per_rank_class
from maya.trace import Trace
from maya.util.arrays import Booleans, Indices

_NODE = re.compile(r"Backward\d*$|^torch::autograd::AccumulateGrad$|^CompiledFunctionBackward")


@dataclass(frozen=True, eq=False)
class Passes:
    """Rows of a rank class, ascending."""

    heavy: Indices  # GEMMs, attention, convolutions, recurrent layers
    backward: Indices  # launched inside autograd's nodes
    forward: Indices  # heavy rows and embeddings outside nodes

    @property
    def shows_training(self) -> bool:
        return bool(len(self.heavy) or len(self.backward))

    def trains_between(self, first: int, last: int) -> bool:
        """Whether rows from `first` on and before `last` belong to a forward or backward pass."""
        return any_between(self.heavy, first, last) or any_between(self.backward, first, last)


@once_per_rank_class
def passes_of(rank_class: RankClass) -> Passes:
    """The passes of a rank class."""
    inside = in_backward(rank_class.trace, rank_class.trace.records["op"][rank_class.records])
    heavy = _rows_of(rank_class, *TENSOR_CORE_CLASSES)
    embeddings = _rows_of(rank_class, KernelClass.EMBEDDING)
    either = np.union1d(heavy, embeddings).astype(np.intp)
    return Passes(heavy, np.flatnonzero(inside), either[~inside[either]])


def in_backward(trace: Trace, numbers: npt.NDArray[np.uint32]) -> Booleans:
    """Whether ops with these numbers ran inside a node of autograd's graph."""
    ops = trace.ops
    if not len(ops):
        return np.zeros(len(numbers), dtype=bool)
    is_node = {
        number: bool(_NODE.search(str(trace.signature(number).get("op", ""))))
        for number in np.unique(ops["signature"]).tolist()
    }
    inside = np.array([is_node[number] for number in ops["signature"].tolist()], dtype=bool)
    parents, known = _places(ops["op"], ops["parent"])
    while True:  # once for each level of nesting
        more = inside | (inside[parents] & known)
        if (more == inside).all():
            break
        inside = more
    places, known = _places(ops["op"], numbers)
    found: Booleans = inside[places] & known
    return found


def any_between(rows: Indices, first: int, last: int) -> bool:
    """Whether one of the rows is at least `first` and less than `last`."""
    return bool(np.searchsorted(rows, first) < np.searchsorted(rows, last))


def _rows_of(rank_class: RankClass, *classes: KernelClass) -> Indices:
    chosen = np.array([item.kernel.kernel_class in classes for item in rank_class.kernels] or [False], dtype=bool)
    return np.flatnonzero(chosen[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0))


def _places(ops: npt.NDArray[np.uint32], numbers: npt.NDArray[np.uint32]) -> tuple[Indices, Booleans]:
    """The positions of these ops among all, and which of them exist."""
    places = np.minimum(np.searchsorted(ops, numbers), len(ops) - 1)
    return places, ops[places] == numbers
