"""The share of an op that one of its launches covers.

In: a `KernelLaunch`, and the size of its op. Out: a share, 1 if the launch covers the whole op. The shares of an op's
launches add up to 1, so that its bytes and FLOPs count once, whatever the number of launches.

torch cuts ops into several launches of one kernel:

- TensorIterator (elementwise kernels, reductions, indexing) halves its tensors until 32-bit offsets reach across them;
- kernels over lists (foreach, fused optimizers, cat) take as many tensors as fit a kernel's parameters;
- softmax of short rows takes 2**30 elements at a time, a scan as well.

A trace records the part of each launch (rank_runtime/shim/device/launch_part.c). Profiles of real runs do not, nor do
traces of earlier versions: there the share follows from the sizes of the op's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import Tensor

_OF_TENSOR_ITERATOR = re.compile(r"elementwise(?!_kernel_with_index)|^reduce_kernel$")
_REACH = 2**31 - 1  # largest 32-bit offset, in bytes and in elements


def share(launch: KernelLaunch, elements: float, itemsizes: Iterable[int]) -> float:
    """The share of `elements` in a launch by TensorIterator; `itemsizes`: bytes per element of each operand."""
    if launch.elements:
        return launch.elements / elements
    return 1 / pieces(elements, itemsizes) if _OF_TENSOR_ITERATOR.search(launch.function) else 1.0


def pieces(elements: float, itemsizes: Iterable[int]) -> int:
    """The number of launches into which TensorIterator cuts dense tensors of this many elements."""
    widest = max(itemsizes, default=1)
    count = 1
    while elements / count > _REACH or (elements / count - 1) * widest + 1 > _REACH:
        count *= 2
    return count


def list_part(sizes: list[int], before: int | None, count: int) -> float:
    """The share of `count` items of a list after the first `before` (None: unknown), by the items' sizes."""
    total = sum(sizes)
    if not total:
        return 1.0
    if before is None or before + count > len(sizes):  # unknown, or cut in an unexpected way: share by number
        return min(1.0, count / max(len(sizes), (before or 0) + count))
    return sum(sizes[before : before + count]) / total


def itemsizes(tensors: Iterable[Tensor], elements: float) -> list[int]:
    """Bytes per element of the tensors that have all elements; smaller ones are broadcast."""
    return [tensor.itemsize for tensor in tensors if tensor.elements >= elements]
