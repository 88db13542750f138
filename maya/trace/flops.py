"""FLOPs of the GEMMs in a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from maya.trace.format import RecordKind
from maya.trace.reader import Trace


def gemm_flops(trace: Trace) -> npt.NDArray[np.float64]:
    """FLOPs of every library call in `trace.select(RecordKind.LIBRARY)`; 0 for calls other than cuBLAS GEMMs."""
    numbers, which = np.unique(trace.select(RecordKind.LIBRARY)["signature"], return_inverse=True)
    per_signature = np.array([flops_of(trace.signature(number)) for number in numbers.tolist()], dtype=np.float64)
    return per_signature[which]


def flops_of(signature: dict[str, Any]) -> float:
    """FLOPs of one call: one multiplication and one addition per element of m x n x k; four of each for complex
    types."""
    is_product = str(signature.get("call", "")).startswith("cublas") and {"m", "n", "k"} <= signature.keys()
    if not is_product:
        return 0.0
    operations = 8.0 if str(signature.get("a_type", "")).startswith("complex") else 2.0
    return operations * float(signature["m"] * signature["n"] * signature["k"] * signature.get("batch", 1))
