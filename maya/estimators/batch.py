"""Kernels of one class, dtype and variant as columns, and their times.

In: `Kernel`s. Out: `Batch`es of numpy columns, the input of the models, and `BatchTimes`, their result. Within a batch
only numbers differ, so a model never handles a single kernel.
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

_ALIKE = attrgetter("kernel_class", "dtype", "variant")
_SIZES = attrgetter("flops", "bytes_read", "bytes_written")


@dataclass(frozen=True)
class Batch:
    """Columns of kernels of one class, dtype and variant."""

    kernel_class: KernelClass
    dtype: str
    variant: str
    flops: Floats
    bytes_read: Floats
    bytes_written: Floats
    shape: dict[str, Floats] = field(default_factory=dict)  # NaN where a kernel lacks the dimension

    def __len__(self) -> int:
        return len(self.flops)

    @property
    def bytes_moved(self) -> Floats:
        return self.bytes_read + self.bytes_written

    def at(self, positions: npt.NDArray[np.intp]) -> Batch:
        """Some of the kernels."""
        shape = {name: values[positions] for name, values in self.shape.items()}
        columns = (self.flops[positions], self.bytes_read[positions], self.bytes_written[positions])
        return Batch(self.kernel_class, self.dtype, self.variant, *columns, shape)

    def column(self, name: str, default: float | Floats) -> Floats:
        """One dimension of all kernels; `default` where a kernel lacks it."""
        values = self.shape.get(name)
        if values is None:
            return np.broadcast_to(np.asarray(default, dtype=np.float64), self.flops.shape)
        return np.where(np.isnan(values), default, values)


@dataclass(frozen=True)
class BatchTimes:
    """The times of all kernels of a batch."""

    seconds: Floats
    origin: Origin
    spread: float | Floats  # expected relative standard deviation
    note: str = ""


def batches(kernels: Sequence[Kernel]) -> Iterator[tuple[npt.NDArray[np.intp], Batch]]:
    """The kernels as batches, each with the positions of its kernels."""
    members: defaultdict[tuple[KernelClass, str, str], list[int]] = defaultdict(list)
    for position, alike in enumerate(map(_ALIKE, kernels)):
        members[alike].append(position)
    for (kernel_class, dtype, variant), positions in members.items():
        yield np.array(positions, dtype=np.intp), _batch(kernel_class, dtype, variant, [kernels[p] for p in positions])


def _batch(kernel_class: KernelClass, dtype: str, variant: str, kernels: list[Kernel]) -> Batch:
    flops, read, written = _transposed(map(_SIZES, kernels), len(kernels), 3)
    return Batch(kernel_class, dtype, variant, flops, read, written, _columns([kernel.shape for kernel in kernels]))


def _columns(shapes: list[dict[str, float]]) -> dict[str, Floats]:
    """The dimensions of kernels by name, sorted by name."""
    key_orders = set(map(tuple, shapes))
    names = sorted(set().union(*key_orders))
    if len(key_orders) > 1:
        absent = float("nan")
        return {name: np.array([shape.get(name, absent) for shape in shapes], dtype=np.float64) for name in names}
    # The usual case: all kernels have the same dimensions, which can be read in one pass.
    (order,) = key_orders
    by_name = dict(zip(order, _transposed(map(dict.values, shapes), len(shapes), len(order)), strict=True))
    return {name: by_name[name] for name in names}


def _transposed(rows: Iterable[Iterable[float]], count: int, width: int) -> Floats:
    """Rows as contiguous columns."""
    numbers = np.fromiter(chain.from_iterable(rows), np.float64, count * width)
    return np.ascontiguousarray(numbers.reshape(count, width).T)
