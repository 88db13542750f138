"""Reductions, against numpy, exact arithmetic and torch's own conversions."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.arithmetic import ITEM_BYTES, Reducer
from rank_runtime.messages import DataType, Reduction

Array = npt.NDArray[Any]

INTEGERS = {
    DataType.INT8: np.int8,
    DataType.UINT8: np.uint8,
    DataType.INT32: np.int32,
    DataType.UINT32: np.uint32,
    DataType.INT64: np.int64,
    DataType.UINT64: np.uint64,
}
FLOATS = {DataType.FLOAT16: np.float16, DataType.FLOAT32: np.float32, DataType.FLOAT64: np.float64}
STORED = {
    **INTEGERS,
    **FLOATS,
    DataType.BFLOAT16: np.uint16,
    DataType.FLOAT8_E4M3: np.uint8,
    DataType.FLOAT8_E5M2: np.uint8,
}


def reduce(
    contributions: Sequence[Array], data_type: DataType, reduction: Reduction, order: Sequence[int] | None = None
) -> Array:
    """What the coordinator makes of the members' contributions, which arrive in the given order."""
    reducer = Reducer(len(contributions), len(contributions[0]), data_type, reduction)
    for member in order if order is not None else range(len(contributions)):
        reducer.add(member, contributions[member].tobytes())
    return np.frombuffer(reducer.result(), STORED[data_type])


@st.composite
def _contributions(draw: st.DrawFn, data_types: Sequence[DataType]) -> tuple[DataType, list[Array], list[int]]:
    """A data type, random bits of it for every member, and an order of arrival."""
    data_type = draw(st.sampled_from(data_types))
    members = draw(st.integers(1, 40))
    # Large ones are combined when they arrive, small ones are gathered first.
    count = draw(st.sampled_from([1, 3, 100, 40_000]) if members <= 9 else st.sampled_from([0, 1, 3, 100]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    stored = np.dtype(STORED[data_type])
    bits = random.integers(0, 256, (members, count * stored.itemsize), np.uint8)
    order = [int(member) for member in random.permutation(members)]
    return data_type, [row.copy().view(stored) for row in bits], order


def test_every_data_type_has_its_size() -> None:
    assert [ITEM_BYTES[data_type] for data_type in DataType] == [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]


# ---- integers ----


@given(_contributions(list(INTEGERS)), st.sampled_from(Reduction))
@settings(deadline=None)
def test_integers_wrap_around(given_: tuple[DataType, list[Array], list[int]], reduction: Reduction) -> None:
    data_type, contributions, order = given_
    stacked = np.stack(contributions)
    expected_of: dict[Reduction, Callable[[], Any]] = {
        Reduction.SUM: lambda: stacked.sum(0, dtype=stacked.dtype),
        Reduction.PREMULSUM: lambda: stacked.sum(0, dtype=stacked.dtype),
        Reduction.PROD: lambda: stacked.prod(0, dtype=stacked.dtype),
        Reduction.MAX: lambda: stacked.max(0),
        Reduction.MIN: lambda: stacked.min(0),
        Reduction.AVG: lambda: [
            math.trunc(Fraction(int(total), len(stacked))) for total in stacked.sum(0, dtype=stacked.dtype)
        ],
    }
    np.testing.assert_array_equal(reduce(contributions, data_type, reduction, order), expected_of[reduction]())


def test_average_of_integers_divides_the_wrapped_sum_towards_zero() -> None:
    assert reduce([np.array([-5], np.int32), np.array([0], np.int32)], DataType.INT32, Reduction.AVG) == [-2]
    assert reduce([np.array([100], np.int8)] * 2, DataType.INT8, Reduction.AVG) == [-28]
    assert reduce([np.array([200], np.uint8)] * 2, DataType.UINT8, Reduction.AVG) == [72]
    assert reduce([np.array([1], np.int8)] * 300, DataType.INT8, Reduction.AVG) == [0]
    assert reduce([np.array([-(1 << 63)], np.int64)], DataType.INT64, Reduction.AVG) == [-(1 << 63)]


# ---- floating point ----


def _tree(rows: list[Array], combine: Any) -> Array:
    """Neighbours first, then pairs of neighbours, and so on."""
    if len(rows) == 1:
        return rows[0]
    with np.errstate(all="ignore"):
        paired = [combine(rows[i], rows[i + 1]) for i in range(0, len(rows) - 1, 2)]
    return _tree(paired + rows[len(rows) & ~1 :], combine)


def _larger(one: Array, other: Array) -> Array:
    """A number rather than a NaN, also a signalling one, of which np.fmax makes a quiet one."""
    return np.where(np.isnan(one) | (other > one), other, one)


def _smaller(one: Array, other: Array) -> Array:
    return np.where(np.isnan(one) | (other < one), other, one)


@given(_contributions(list(FLOATS)), st.sampled_from(Reduction))
@settings(deadline=None)
def test_floats_are_combined_in_a_fixed_tree_and_rounded_once(
    given_: tuple[DataType, list[Array], list[int]], reduction: Reduction
) -> None:
    data_type, contributions, order = given_
    combine = {Reduction.PROD: np.multiply, Reduction.MAX: _larger, Reduction.MIN: _smaller}.get(reduction, np.add)
    wide = np.float64 if data_type == DataType.FLOAT64 else np.float32
    with np.errstate(all="ignore"):
        expected = _tree([row.astype(wide) for row in contributions], combine)
        if reduction == Reduction.AVG:
            expected = expected / wide(len(contributions))
        expected = expected.astype(STORED[data_type])
    result = reduce(contributions, data_type, reduction, order)
    np.testing.assert_array_equal(result, expected)
    assert result.tobytes() == reduce(contributions, data_type, reduction).tobytes()


@pytest.mark.parametrize("members", [2, 3, 8, 1024])
def test_sums_are_close_to_the_exact_ones(members: int) -> None:
    rows = list(np.random.default_rng(members).normal(size=(members, 50)).astype(np.float32))
    exact = [math.fsum(float(row[i]) for row in rows) for i in range(50)]
    np.testing.assert_allclose(reduce(rows, DataType.FLOAT32, Reduction.SUM), exact, atol=1e-6 * members)
    np.testing.assert_allclose(
        reduce(rows, DataType.FLOAT32, Reduction.AVG), np.array(exact) / members, rtol=1e-4, atol=1e-6
    )


def test_narrow_types_are_not_rounded_in_between() -> None:
    ones = [np.array([1.0], np.float16)] * 4096
    assert reduce(ones, DataType.FLOAT16, Reduction.SUM) == [4096]
    assert reduce([np.array([60000], np.float16)] * 4, DataType.FLOAT16, Reduction.AVG) == [np.float16(60000)]
    bfloat16_ones = [np.array([0x3F80], np.uint16)] * 1024
    assert reduce(bfloat16_ones, DataType.BFLOAT16, Reduction.SUM) == [0x4480]  # 1024.0; 1 + 256 is 256 in bf16


def test_maximum_and_minimum_prefer_numbers_to_nan() -> None:
    nan, rows = np.nan, [np.array([np.nan, 1, np.nan], np.float32), np.array([2, np.nan, np.nan], np.float32)]
    for reduction in (Reduction.MAX, Reduction.MIN):
        np.testing.assert_array_equal(reduce(rows, DataType.FLOAT32, reduction), [2, 1, nan])


@pytest.mark.parametrize(
    ("data_type", "one", "largest", "infinite", "not_a_number", "too_large"),
    [
        (DataType.FLOAT16, 0x3C00, 0x7BFF, 0x7C00, 0x7FFF, 0x7C00),
        (DataType.BFLOAT16, 0x3F80, 0x7F7F, 0x7F80, 0x7FFF, 0x7F80),
        (DataType.FLOAT8_E4M3, 0x38, 0x7E, None, 0x7F, 0x7E),
        (DataType.FLOAT8_E5M2, 0x3C, 0x7B, 0x7C, 0x7F, 0x7B),
    ],
)
def test_narrow_floats_round_and_saturate_at_their_limits(
    data_type: DataType, one: int, largest: int, infinite: int | None, not_a_number: int, too_large: int
) -> None:
    """Numbers beyond the range become infinity in 16 bits; in 8 bits they and infinity become the largest number."""
    bits = np.uint16 if ITEM_BYTES[data_type] == 2 else np.uint8
    sign = 0x8000 if bits is np.uint16 else 0x80

    def sum_of(*codes: int) -> int:
        rows = [np.array([code], bits).view(STORED[data_type]) for code in codes]
        return int(reduce(rows, data_type, Reduction.SUM).view(bits)[0])

    assert sum_of(largest, largest) == too_large
    assert sum_of(largest | sign, largest | sign) == too_large | sign
    assert sum_of(not_a_number, one) == not_a_number
    assert sum_of(not_a_number | sign, one) == not_a_number
    assert sum_of(one | sign, one) == 0
    assert sum_of(sign, sign) == sign  # minus zero
    if infinite is not None:
        assert sum_of(infinite, one) == too_large
        assert sum_of(infinite, infinite | sign) == not_a_number


# ---- memory ----


def test_a_reduction_holds_little_memory() -> None:
    members, count = 256, 1 << 15
    one = 4 * count
    reducer = Reducer(members, count, DataType.FLOAT32, Reduction.SUM)
    tracemalloc.start()
    try:
        for member in range(members):
            reducer.add(member, np.full(count, member, np.float32).tobytes())
        result = reducer.result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * one, f"{peak / one:.0f} contributions at once"
    np.testing.assert_array_equal(np.frombuffer(result, np.float32), np.full(count, 255 * 128, np.float32))
