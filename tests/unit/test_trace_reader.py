"""Reading a trace without recording one: columns, files that are no traces, names of kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maya.trace import TraceError, read
from maya.trace.columns import decode_varints, unfold
from maya.trace.demangle import demangle
from maya.trace.flops import flops_of
from maya.trace.listing import parse_kinds

DEVICE = Path(__file__).parents[2] / "rank_runtime" / "shim" / "device"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank3.trace"


# ---- the code of columns and records, for all values ----

UNSIGNED = st.integers(0, 2**64 - 1)


@given(st.lists(UNSIGNED, max_size=30))
def test_varints_are_decoded(values: list[int]) -> None:
    data = bytearray()
    for value in values:
        while value >= 0x80:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)
    decoded, last = decode_varints(np.frombuffer(bytes(data), dtype=np.uint8))
    assert decoded.tolist() == values
    assert len(last) == len(values)


def test_malformed_varints_are_refused() -> None:
    with pytest.raises(ValueError, match="cut short"):
        decode_varints(np.array([1, 0x80], dtype=np.uint8))
    with pytest.raises(ValueError, match="64 bits"):
        decode_varints(np.array([0x80] * 10 + [1], dtype=np.uint8))


@given(st.integers(-(2**63), 2**63 - 1))
def test_folded_differences_are_unfolded(difference: int) -> None:
    folded = 2 * difference if difference >= 0 else -2 * difference - 1
    assert unfold(np.array([folded], dtype=np.uint64)).tolist() == [difference % 2**64]


# ---- files that are no traces of ours ----


def test_an_empty_file_is_refused(path: Path) -> None:
    path.touch()
    with pytest.raises(TraceError, match="is empty: the disk was full") as error:
        read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"\x7fELF and more", b"MAYATR"])
def test_a_file_that_is_no_trace_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match="is not a trace of Maya") as error:
        read(path)
    assert str(path) in str(error.value)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no records of kind 'kernal'. Did you mean kernel\? The kinds are: op, "):
        parse_kinds(["kernal"])


def test_complex_matmuls_take_four_times_the_flops() -> None:
    assert flops_of({"call": "cublasCgemm_v2", "m": 2, "n": 3, "k": 4, "a_type": "complex64"}) == 8.0 * 24
    assert flops_of({"call": "cublasLtMatmul", "m": 2, "n": 3, "k": 4}) == 2.0 * 24
    assert flops_of({"call": "cufftExecC2C", "m": 2, "n": 3, "k": 4}) == 0.0


@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_ZN2at6native6kernelILi4EEEvPf", "at::native::kernel<4>"),
        ("_ZN12_GLOBAL__N_14workEi", "(anonymous namespace)::work"),
        ("_Z3addPfS_i", "add"),
        ("_Z5applyIZ4mainEUlfE_EvT_PFvfE", "apply<main::{lambda(float)#1}>"),
        ("_Z_not_mangled", "_Z_not_mangled"),
    ],
)
def test_kernel_names_are_demangled(mangled: str, readable: str) -> None:
    assert demangle([mangled]) == {mangled: readable}


def test_reading_needs_no_torch() -> None:
    code = "import sys, maya.trace, maya.trace.listing; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
