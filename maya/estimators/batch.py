"""Works of one kind, dtype and variant as columns, and the times that are given for them.

In: `Kernel`s. Out: `Batch`es of numpy columns, which is what the estimators of the kinds take, and `BatchTimes`, which
is what they give back. Within a batch only numbers differ, so an estimator never looks at a work by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import Kernel, KernelClass, Origin

Floats = npt.NDArray[np.float64]

_ALIKE = attrgetter("kind", "dtype", "variant")
_SIZES = attrgetter("flops", "bytes_read", "bytes_written")


@dataclass(frozen=True)
class Batch:
    """Columns of works of one kind, dtype and variant."""

    kind: KernelClass
    dtype: str
    variant: str
    flops: Floats
    bytes_read: Floats
    bytes_written: Floats
    shape: dict[str, Floats] = field(default_factory=dict)  # NaN where a work does not say

    def __len__(self) -> int:
        return len(self.flops)

    @property
    def bytes_moved(self) -> Floats:
        return self.bytes_read + self.bytes_written

    def column(self, name: str, default: float | Floats) -> Floats:
        """One dimension of all works; `default` where a work does not have it."""
        values = self.shape.get(name)
        if values is None:
            return np.broadcast_to(np.asarray(default, dtype=np.float64), self.flops.shape)
        return np.where(np.isnan(values), default, values)


@dataclass(frozen=True)
class BatchTimes:
    """What an estimator says about all works of a batch."""

    seconds: Floats
    origin: Origin
    spread: float | Floats  # relative standard deviation to be expected
    note: str = ""


def batches(kernels: Sequence[Kernel]) -> Iterator[tuple[npt.NDArray[np.intp], Batch]]:
    """The works as batches, each with the positions of its works."""
    members: defaultdict[tuple[KernelClass, str, str], list[int]] = defaultdict(list)
    for position, alike in enumerate(map(_ALIKE, kernels)):
        members[alike].append(position)
    for (kind, dtype, variant), positions in members.items():
        yield np.array(positions, dtype=np.intp), _batch(kind, dtype, variant, [kernels[p] for p in positions])


def _batch(kind: KernelClass, dtype: str, variant: str, kernels: list[Kernel]) -> Batch:
    flops, read, written = _transposed(map(_SIZES, kernels), len(kernels), 3)
    return Batch(kind, dtype, variant, flops, read, written, _columns([kernel.shape for kernel in kernels]))


def _columns(shapes: list[dict[str, float]]) -> dict[str, Floats]:
    """The dimensions of works by their names, in the order of those."""
    kinds = set(map(tuple, shapes))
    names = sorted(set().union(*kinds))
    if len(kinds) > 1:
        absent = float("nan")
        return {name: np.array([shape.get(name, absent) for shape in shapes], dtype=np.float64) for name in names}
    # All have the same, as is usual, and can be read in one go.
    (order,) = kinds
    by_name = dict(zip(order, _transposed(map(dict.values, shapes), len(shapes), len(order)), strict=True))
    return {name: by_name[name] for name in names}


def _transposed(rows: Iterable[Iterable[float]], count: int, width: int) -> Floats:
    """Rows as columns, each in one piece."""
    numbers = np.fromiter(chain.from_iterable(rows), np.float64, count * width)
    return np.ascontiguousarray(numbers.reshape(count, width).T)
