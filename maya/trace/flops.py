"""Floating-point operations of the matrix products in a trace: what MFU is counted from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from maya.trace.format import RecordKind
from maya.trace.reader import Trace


def gemm_flops(trace: Trace) -> npt.NDArray[np.float64]:
    """FLOPs of every library call in `trace.select(Kind.LIBRARY)`; 0 for what is not a matrix product of cuBLAS."""
    numbers, which = np.unique(trace.select(RecordKind.LIBRARY)["signature"], return_inverse=True)
    per_signature = np.array([flops_of(trace.signature(number)) for number in numbers.tolist()], dtype=np.float64)
    return per_signature[which]


def flops_of(signature: dict[str, Any]) -> float:
    """FLOPs of one call: a multiplication and an addition for each of m x n x k; four of each in complex arithmetic."""
    is_product = str(signature.get("call", "")).startswith("cublas") and {"m", "n", "k"} <= signature.keys()
    if not is_product:
        return 0.0
    operations = 8.0 if str(signature.get("a_type", "")).startswith("complex") else 2.0
    return operations * float(signature["m"] * signature["n"] * signature["k"] * signature.get("batch", 1))
