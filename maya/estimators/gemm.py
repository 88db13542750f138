"""Matrix products: cuBLAS and cuBLASLt, batched, grouped, scaled (fp8).

A product is `out[m, n] = a[m, k] @ b[k, n]`, `batch` times. Variants name the layout as cuBLAS does for column-major
operands, which for torch is: TN, forward of a linear layer; NN, gradient of its input; NT, gradient of its weights.
In: batches with the columns m, n, k, batch. Out: times.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Times
from maya.estimators.bounds import LAUNCH_SECONDS, compute_seconds, element_bytes, memory_seconds
from maya.estimators.pack import Packs
from maya.estimators.work import Kind, Origin, Work

LAYOUTS = ("TN", "NN", "NT", "TT")


def gemm_work(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: str = "bf16",
    layout: str = "TN",
    out_dtype: str | None = None,
    accumulate: bool = False,
) -> Work:
    """The work of a matrix product. `accumulate`: the output is read and added to (beta is not 0)."""
    out_bytes = element_bytes(out_dtype or ("bf16" if dtype == "fp8" else dtype))
    size = element_bytes(dtype)
    return Work(
        kind=Kind.GEMM,
        dtype=dtype,
        flops=2.0 * batch * m * n * k,
        bytes_read=float(batch) * (size * (m * k + k * n) + (out_bytes * m * n if accumulate else 0.0)),
        bytes_written=float(batch) * out_bytes * m * n,
        shape={"m": m, "n": n, "k": k, "batch": batch},
        variant=layout,
    )


def evaluate(device: Device, packs: Packs, batch: Batch) -> Times:
    """Times of matrix products."""
    busy = np.maximum(compute_seconds(device, batch.dtype, batch.flops), memory_seconds(device, batch.bytes_moved))
    return Times(LAUNCH_SECONDS + busy / 0.75, Origin.ROOFLINE, 0.3, "usual efficiency")
