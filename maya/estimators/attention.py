"""Attention: softmax(q k^T) v in one kernel; flash, memory-efficient and cuDNN's; forward and backward.

In: batches with the columns batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal (0 or 1); variants name
the implementation and the direction: "flash_forward", "cudnn_backward", ... Out: times.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Times
from maya.estimators.bounds import LAUNCH_SECONDS, compute_seconds, element_bytes, memory_seconds
from maya.estimators.pack import Packs
from maya.estimators.work import Kind, Origin, Work

IMPLEMENTATIONS = ("flash", "efficient", "cudnn", "flash3")  # flash: FlashAttention 2, which torch's own kernels are
DIRECTIONS = ("forward", "backward")


def attention_work(
    batch: int,
    heads: int,
    queries: int,
    head_dim: int,
    *,
    keys: int | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
    dtype: str = "bf16",
    implementation: str = "flash",
    backward: bool = False,
    pairs: float | None = None,
) -> Work:
    """The work of one attention kernel.

    `pairs`: how many (query, key) pairs of one head, summed over the batch, are looked at: for sequences of differing
    lengths (varlen) or a sliding window; else it follows from the shape. Causal masks are aligned at the top left when
    queries and keys differ in number, as torch's are.
    """
    keys = queries if keys is None else keys
    kv_heads = kv_heads or heads
    value_dim = value_dim or head_dim
    if pairs is None:
        pairs = float(batch) * causal_pairs(queries, keys) if causal else float(batch) * queries * keys
    size = element_bytes(dtype)
    query_bytes = size * batch * heads * queries * head_dim
    key_value_bytes = size * batch * kv_heads * keys * (head_dim + value_dim)
    out_bytes = element_bytes("bf16" if dtype == "fp8" else dtype) * batch * heads * queries * value_dim
    statistics = 4.0 * batch * heads * queries
    products = 2.0 * heads * pairs
    if backward:  # recomputes q k^T, then one product for each of dv, dp, dq, dk
        flops = products * (3.0 * head_dim + 2.0 * value_dim)
        read = query_bytes + key_value_bytes + 2.0 * out_bytes + statistics
        written = query_bytes + key_value_bytes
    else:
        flops = products * (head_dim + value_dim)
        read = query_bytes + key_value_bytes
        written = out_bytes + statistics
    return Work(
        kind=Kind.ATTENTION,
        dtype=dtype,
        flops=flops,
        bytes_read=float(read),
        bytes_written=float(written),
        shape={
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "queries": queries,
            "keys": keys,
            "head_dim": head_dim,
            "value_dim": value_dim,
            "causal": float(causal),
        },
        variant=f"{implementation}_{'backward' if backward else 'forward'}",
    )


def causal_pairs(queries: int, keys: int) -> float:
    """Pairs (query, key) with key <= query."""
    square = min(queries, keys)
    return square * (square + 1) / 2.0 + max(queries - keys, 0) * float(keys)


def evaluate(device: Device, packs: Packs, batch: Batch) -> Times:
    """Times of attention kernels."""
    busy = np.maximum(compute_seconds(device, batch.dtype, batch.flops), memory_seconds(device, batch.bytes_moved))
    return Times(LAUNCH_SECONDS + busy / 0.5, Origin.ROOFLINE, 0.3, "usual efficiency")
