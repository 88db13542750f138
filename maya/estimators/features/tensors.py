"""Tensors of ops as traces describe them: shape, dtype and strides -> elements and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# torch's name of a dtype -> (its name in a `Kernel`, bytes of an element)
_DTYPES = {
    "float32": ("fp32", 4),
    "float": ("fp32", 4),
    "float64": ("fp64", 8),
    "double": ("fp64", 8),
    "float16": ("fp16", 2),
    "half": ("fp16", 2),
    "bfloat16": ("bf16", 2),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
    "float8_e4m3fnuz": ("fp8", 1),
    "float8_e5m2fnuz": ("fp8", 1),
    "float8_e8m0fnu": ("fp8", 1),
    "float4_e2m1fn_x2": ("fp4", 1),
    "int64": ("int64", 8),
    "int32": ("int32", 4),
    "int16": ("int16", 2),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "uint16": ("uint16", 2),
    "uint32": ("uint32", 4),
    "uint64": ("uint64", 8),
    "bool": ("bool", 1),
    "complex32": ("complex32", 4),
    "complex64": ("complex64", 8),
    "complex128": ("complex128", 16),
}
_BYTES = dict(_DTYPES.values()) | {"tf32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1, "bf16x9": 4}


@dataclass(frozen=True)
class Tensor:
    """One tensor among the inputs of an op."""

    shape: tuple[int, ...]
    dtype: str  # "bf16", "fp32", "int64", ...
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements, including repetitions in expanded dimensions."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of memory behind the tensor: an expanded dimension (stride 0) adds none."""
        if len(self.strides) != len(self.shape):
            return self.elements * self.itemsize
        distinct = [size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0]
        return math.prod(distinct) * self.itemsize

    @property
    def rows_are_contiguous(self) -> bool:
        """Whether the last dimension is contiguous in memory."""
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if size > 1:
                return stride <= 1  # 0: the same element again
        return True


def itemsize(dtype: str) -> int:
    """Bytes of an element; 4 for an unknown type."""
    return _BYTES.get(dtype, 4)


def short_dtype(name: str) -> str:
    """ "bfloat16" -> "bf16"; short and unknown names are unchanged."""
    return _DTYPES.get(name, (name, 0))[0]


def parse_input(value: Any) -> Any:
    """Parse one input of an op in a trace: tensors become `Tensor`, lists stay lists, others are unchanged."""
    if isinstance(value, dict) and "shape" in value:
        shape = tuple(int(size) for size in value["shape"])
        strides = tuple(int(stride) for stride in value.get("strides", ()))
        if not strides:
            strides = dense_strides(shape)
        return Tensor(shape, short_dtype(str(value.get("dtype", "float32"))), strides)
    if isinstance(value, list):
        return [parse_input(item) for item in value]
    return value


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among inputs, those in lists included, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)


def broadcast(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """The shape to which the tensors broadcast; where they do not, the larger size wins."""
    result: list[int] = []
    for tensor in tensors:
        shape = list(tensor.shape)
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        for at, size in enumerate(reversed(shape), start=1):
            if size == 0 or result[-at] == 0:
                result[-at] = 0
            else:
                result[-at] = max(result[-at], size)
    return tuple(result)
