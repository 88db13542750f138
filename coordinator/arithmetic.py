"""Reductions over bytes: the sum, product, maximum, minimum or average of the members' buffers, for every data type.

In: one contribution per member, in any order of arrival. Out: the result's bytes, which depend only on the
contributions. A fixed binary tree over the members' indices combines them. Each node of the tree is computed as soon as
its two halves are available, so that few partial results are in memory (ten for 1024 members that arrive in order).

Integers wrap, as on the device; an average of integers is the wrapped sum divided towards zero. Numbers of 32 and 64
bits are computed in their own type. Narrower ones are computed in 32 bits throughout the tree and rounded to nearest
even once, at the end; NCCL rounds at every hop, so its results may differ in the last place. An average divides the
sum. The maximum and minimum of a number and a NaN is the number, as with fmax and fmin. Rounding to a narrow type does
what CUDA's conversions do: in fp16 and bf16 an overflow becomes infinity; in fp8 overflow and infinity become the
largest finite number (448 and 57344). Any NaN becomes 0x7f (0x7fff in bf16 and fp16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rank_runtime.messages import DataType, Reduction

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

_BLOCK_BYTES = 1 << 18  # contributions are gathered up to about this size, then combined level by level


# ---- data types ----


def _same(values: Array) -> Array:
    return values


def _widen_half(values: Array) -> Array:
    return values.astype(np.float32)


def _narrow_half(values: Array) -> Array:
    narrow = values.astype(np.float16)
    narrow.view(np.uint16)[np.isnan(values)] = 0x7FFF
    return narrow


def _widen_bfloat16(values: Array) -> Array:
    wide: Array = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def _narrow_bfloat16(values: Array) -> Array:
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    narrow: Array = ((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)
    narrow[np.isnan(values)] = 0x7FFF
    return narrow


@dataclass(frozen=True)
class _Float8:
    """A type of eight bits: sign, exponent, mantissa."""

    mantissa_bits: int
    smallest_exponent: int  # the smallest normal number's
    largest: float
    largest_code: int

    def decoded(self) -> Array:
        """The value of each of the 256 codes."""
        codes = np.arange(256)
        magnitudes = codes & 0x7F
        exponents = magnitudes >> self.mantissa_bits
        mantissas = magnitudes & ((1 << self.mantissa_bits) - 1)
        leading = np.where(exponents > 0, 1 << self.mantissa_bits, 0)
        scale = np.maximum(exponents, 1) - 1 + self.smallest_exponent - self.mantissa_bits
        values: Array = np.ldexp((leading + mantissas).astype(np.float32), scale).astype(np.float32)
        values[magnitudes > self.largest_code] = np.nan
        if self.largest_code == 0x7B:  # as in IEEE 754, the code above the largest number is infinity
            values[magnitudes == 0x7C] = np.inf
        values[codes >= 0x80] *= -1
        return values

    def narrow(self, values: Array) -> Array:
        """Round to nearest even; saturate at the largest finite number."""
        magnitudes = np.minimum(np.abs(values), np.float32(self.largest))
        bits = magnitudes.view(np.uint32)
        dropped = 23 - self.mantissa_bits
        odd = (bits >> np.uint32(dropped)) & np.uint32(1)
        rounded = (bits + odd + np.uint32((1 << (dropped - 1)) - 1)) >> np.uint32(dropped)
        normal = rounded - np.uint32((127 + self.smallest_exponent - 1) << self.mantissa_bits)
        # Adding a number whose last place is the smallest subnormal makes the adder do the rounding.
        magic = np.float32(2.0 ** (self.smallest_exponent + dropped))
        subnormal = (magnitudes + magic).view(np.uint32) - magic.view(np.uint32)
        codes = np.where(magnitudes < np.float32(2.0**self.smallest_exponent), subnormal, normal)
        codes = np.minimum(codes, self.largest_code) | (np.signbit(values).astype(np.uint32) << np.uint32(7))
        return np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)


_E4M3 = _Float8(mantissa_bits=3, smallest_exponent=-6, largest=448.0, largest_code=0x7E)
_E5M2 = _Float8(mantissa_bits=2, smallest_exponent=-14, largest=57344.0, largest_code=0x7B)
_E4M3_VALUES = _E4M3.decoded()
_E5M2_VALUES = _E5M2.decoded()


@dataclass(frozen=True)
class Format:
    """The stored type of a data type, and its conversions to and from the type of computation."""

    stored: npt.DTypeLike
    widen: Callable[[Array], Array] = _same
    narrow: Callable[[Array], Array] = _same


FORMATS = {
    DataType.INT8: Format(np.int8),
    DataType.UINT8: Format(np.uint8),
    DataType.INT32: Format(np.int32),
    DataType.UINT32: Format(np.uint32),
    DataType.INT64: Format(np.int64),
    DataType.UINT64: Format(np.uint64),
    DataType.FLOAT16: Format(np.float16, _widen_half, _narrow_half),
    DataType.FLOAT32: Format(np.float32),
    DataType.FLOAT64: Format(np.float64),
    DataType.BFLOAT16: Format(np.uint16, _widen_bfloat16, _narrow_bfloat16),
    DataType.FLOAT8_E4M3: Format(np.uint8, lambda codes: _E4M3_VALUES[codes], _E4M3.narrow),
    DataType.FLOAT8_E5M2: Format(np.uint8, lambda codes: _E5M2_VALUES[codes], _E5M2.narrow),
}
ITEM_BYTES = tuple(np.dtype(FORMATS[data_type].stored).itemsize for data_type in DataType)


# np.fmax and np.fmin are not used: their result for a signalling NaN depends on the memory layout of the arrays.
def _larger(one: Array, other: Array, out: Array | None = None) -> Array:
    return np.where((one != one) | (other > one), other, one)


def _smaller(one: Array, other: Array, out: Array | None = None) -> Array:
    return np.where((one != one) | (other < one), other, one)


_COMBINE: dict[int, Callable[..., Array]] = {
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MAX: _larger,
    Reduction.MIN: _smaller,
    Reduction.AVG: np.add,
    Reduction.PREMULSUM: np.add,
}


# ---- the tree ----


class Reducer:
    """Reduces one buffer per member."""

    def __init__(self, members: int, count: int, data_type: int, reduction: int) -> None:
        self._members = members
        self._count = count
        self._format = FORMATS[DataType(data_type)]
        self._reduction = reduction
        self._combine = _COMBINE[reduction]
        block = 1
        while block < members and 2 * block * count * ITEM_BYTES[data_type] <= _BLOCK_BYTES:
            block *= 2
        self._block_members = block  # a power of two, so that a block is a node of the tree
        self._is_ours = (
            block > 1 or self._format.widen is not _same
        )  # the lowest nodes hold arrays that may be overwritten
        self._blocks: dict[int, tuple[Array, int]] = {}  # rows of contributions, and the number of missing ones
        self._missing = members
        self._nodes: dict[tuple[int, int], Array] = {}  # level above the blocks, index -> partial result

    def add(self, member: int, contribution: Buffer) -> None:
        """Add one member's buffer."""
        self._missing -= 1
        values = np.frombuffer(contribution, self._format.stored, self._count)
        if self._block_members == 1:
            self._climb(member, self._format.widen(values))
            return
        index, row = divmod(member, self._block_members)
        rows, missing = self._blocks.pop(index, (None, 0))
        if rows is None:
            missing = min(self._block_members, self._members - index * self._block_members)
            rows = np.empty((missing, self._count), self._format.stored)
        rows[row] = values
        if missing > 1:
            self._blocks[index] = (rows, missing - 1)
        else:
            self._climb(index, self._reduce_rows(self._format.widen(rows)))

    def result(self) -> bytes:
        """The result, after all contributions have been added."""
        assert self._missing == 0, "contributions are missing"
        (total,) = self._nodes.values()
        with np.errstate(all="ignore"):
            if self._reduction == Reduction.AVG:
                total = self._divided(total)
            return self._format.narrow(total).tobytes()

    def _climb(self, index: int, values: Array) -> None:
        """Combine a node with its sibling if that is available, and continue towards the root."""
        level = 0
        nodes = -(-self._members // self._block_members)
        with np.errstate(all="ignore"):
            while nodes > 1:
                if index ^ 1 < nodes:
                    other = self._nodes.pop((level, index ^ 1), None)
                    if other is None:
                        break
                    left, right = (other, values) if index & 1 else (values, other)
                    # Partial results may be overwritten, contributions may not.
                    values = self._combine(left, right, out=left if level > 0 or self._is_ours else None)
                level, index, nodes = level + 1, index // 2, (nodes + 1) // 2
        self._nodes[level, index] = values

    def _reduce_rows(self, rows: Array) -> Array:
        """Reduce the rows of a block with the same tree, one level at a time."""
        with np.errstate(all="ignore"):
            while len(rows) > 1:
                even = len(rows) & ~1
                combined = self._combine(rows[0:even:2], rows[1:even:2])
                rows = np.concatenate([combined, rows[even:]]) if even < len(rows) else combined
        total: Array = rows[0]
        return total

    def _divided(self, total: Array) -> Array:
        quotient: Array
        if total.dtype.kind == "f":
            quotient = total / total.dtype.type(self._members)
            return quotient
        # The number of members need not fit into the type of the total.
        wide = total.astype(np.uint64 if total.dtype.kind == "u" else np.int64)
        divisor = wide.dtype.type(self._members)
        quotient = (wide - np.fmod(wide, divisor)) // divisor
        return quotient.astype(total.dtype)
