"""Attention: softmax(q k^T) v in one kernel; flash, memory-efficient and cuDNN's; forward and backward.

In: batches with the columns batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal (0 or 1); variants name
the implementation and the direction: "flash_forward", "cudnn_backward", ... Out: times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, Floats
from maya.estimators.kernel import Kernel, KernelClass, Origin
from maya.estimators.models.bounds import (
    LAUNCH_SECONDS,
    cached_seconds,
    clock_under_load,
    element_bytes,
    memory_seconds,
    peak_flops,
    wave_efficiency,
)
from maya.estimators.pack import Found, Packs

# flash: FlashAttention 2, which is in torch; flash3, flash4: used by serving frameworks on Hopper and Blackwell
# flex: FlexAttention, a Triton kernel; "flex_dense" where values in memory decide what its mask hides
IMPLEMENTATIONS = ("flash", "efficient", "cudnn", "flash3", "flash4", "flex")

_SHORTEST = 1e-15  # seconds; keeps the logarithm of empty kernels finite
_TYPICAL_EFFICIENCY = 0.45
_MEASURED_AS = {"fp16": "bf16"}
_EFFICIENT_SLOWDOWN = 1.5  # assumed, not measured
# FlexAttention against FlashAttention 2, from PyTorch's announcement: 90 % of its speed forward, 85 % backward.
_FLEX_SLOWDOWN = {"forward": 1 / 0.9, "backward": 1 / 0.85}
_FLEX_SPREAD = {"flex": 0.25, "flex_dense": 0.5}
_BACKWARD_FLOPS = 2.5
_FOR_NEWEST_TENSOR_CORES = ("flash4", "flash3", "cudnn")

# Ratio of FLOPS forward to backward: 1.16 to 1.19 for FlashAttention 2 on A100 (SimuMax) and for cuDNN on H200 and
# GB200 (cuDNN frontend) where the kernel fills the device.
_BACKWARD_SLOWDOWN = 1.18

# Per SM in 16 bit: about 62 % of the rate of a Hopper SM with its own instructions (4096).
_WARP_LEVEL_FLOPS_PER_CLOCK = 2560.0


def attention_kernel(
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
) -> Kernel:
    """One attention kernel.

    `pairs`: the number of visible (query, key) pairs of one head, summed over the batch, for sequences of different
    lengths (varlen) or a sliding window; else it follows from the shape. Causal masks are aligned at the top left when
    queries and keys differ in number, as in torch.
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
    if backward:  # recomputes q k^T, then one GEMM for each of dv, dp, dq, dk
        flops = products * (3.0 * head_dim + 2.0 * value_dim)
        read = query_bytes + key_value_bytes + 2.0 * out_bytes + statistics
        written = query_bytes + key_value_bytes
    else:
        flops = products * (head_dim + value_dim)
        read = query_bytes + key_value_bytes
        written = out_bytes + statistics
    return Kernel(
        kernel_class=KernelClass.ATTENTION,
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


def window_pairs(queries: int, window: int) -> float:
    """Pairs (query, key) of a causal sliding window: a query attends to itself and the `window - 1` keys before it."""
    window = min(window, queries)
    return window * (window + 1) / 2.0 + (queries - window) * float(window)


def computed_flops(device: Device, batch: Batch) -> Floats:
    """The FLOPs that a kernel executes: those of visible pairs, and those of masked pairs that it does not skip.

    cuDNN's backward in fp8 on Hopper computes masked pairs as well: with a causal mask it takes 0.88 times as long as
    without one for 16,384 queries, and 0.91 times for 32,768. On Blackwell it takes half as long, as all others do.
    """
    if batch.dtype == "fp8" and batch.variant == "cudnn_backward" and device.compute_capability[0] == 9:
        return batch.flops * np.where(batch.column("causal", 0.0) > 0, 2.0, 1.0)
    return batch.flops


def describe(device: Device, batch: Batch) -> tuple[Floats, dict[str, Floats]]:
    """The bound, and the features that decide how close an attention kernel comes to it."""
    peak = peak_flops(device, batch.dtype)
    if batch.variant.startswith("flash_"):
        # Written for Ampere: its warp-level instructions cannot fill newer tensor cores.
        clock = device.tensor_clock_hz or device.clock_hz
        peak = min(peak, _WARP_LEVEL_FLOPS_PER_CLOCK * device.sm_count * clock)
    count, heads, queries = (batch.column(name, 1.0) for name in ("batch", "heads", "queries"))
    kv_heads, keys = batch.column("kv_heads", heads), batch.column("keys", queries)
    head_dim = batch.column("head_dim", 128.0)
    computing = computed_flops(device, batch) / (peak * clock_under_load(device, batch.dtype))
    memory = memory_seconds(device, batch.bytes_moved)
    bound = LAUNCH_SECONDS + np.maximum(computing, cached_seconds(device, batch.bytes_moved))
    blocks = count * heads * np.ceil(queries / 128)
    features = {
        "queries": np.log2(queries),
        "keys": np.log2(keys),
        "head_dim": head_dim,
        "value_dim": batch.column("value_dim", head_dim),
        "causal": batch.column("causal", 0.0),
        "sharing": np.log2(heads / kv_heads),
        "bound": np.log2(bound),
        "balance": np.log2(np.maximum(computing, _SHORTEST) / np.maximum(memory, _SHORTEST)),
        "waves": np.log2(blocks / device.sm_count),
        "wave_efficiency": wave_efficiency(device, blocks),
        "heads_in_all": np.log2(count * heads),
    }
    return bound, features


def evaluate(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Times of attention kernels, from measurements of the implementation or of the most similar one."""
    implementation, _, direction = batch.variant.rpartition("_")
    found = _find(packs, batch.dtype, batch.variant)
    before_hopper = device.compute_capability < (9, 0)
    if found is not None and (found.origin is Origin.MODEL or not (implementation == "cudnn" and before_hopper)):
        bound, _ = describe(device, batch)
        seconds = bound * found.slowdown(batch, describe)
        if found.origin is Origin.MODEL:
            return BatchTimes(seconds, found.origin, found.model.spread, found.note)
        warp_level = "" if implementation != "flash" or before_hopper else "at the rate of warp-level instructions"
        return BatchTimes(seconds, found.origin, _spread_of_similar(found), _note(found.note, warp_level))
    if implementation == "efficient":
        like = evaluate(device, packs, replace(batch, variant=f"flash_{direction}"))
        note = _note(f"assumed {_EFFICIENT_SLOWDOWN:g} times FlashAttention 2", like.note)
        return BatchTimes(like.seconds * _EFFICIENT_SLOWDOWN, Origin.ROOFLINE, 0.3, note)
    if implementation in _FLEX_SPREAD:
        like = evaluate(device, packs, replace(batch, variant=f"flash_{direction}"))
        note = f"assumed {_FLEX_SLOWDOWN[direction]:.2f} times FlashAttention 2"
        hidden = "its mask depends on values: taken to hide nothing there" if implementation == "flex_dense" else ""
        seconds = like.seconds * _FLEX_SLOWDOWN[direction]
        return BatchTimes(seconds, Origin.ROOFLINE, _FLEX_SPREAD[implementation], _note(note, hidden, like.note))
    if implementation == "cudnn" and before_hopper:
        like = evaluate(device, packs, replace(batch, variant=f"flash_{direction}"))
        return BatchTimes(like.seconds, Origin.ROOFLINE, 0.2, _note("assumed FlashAttention 2", like.note))
    if direction == "backward":
        return _backward_from_forward(device, packs, batch)
    bound, _ = describe(device, batch)
    return BatchTimes(bound / _TYPICAL_EFFICIENCY, Origin.ROOFLINE, 0.4, "typical efficiency, nothing was measured")


def _backward_from_forward(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """The time of an unmeasured backward: 2.5 times the FLOPs of forward, at a slightly lower rate."""
    bound, _ = describe(device, batch)
    variant = f"{batch.variant.removesuffix('backward')}forward"
    # Backward moves all tensors of forward and their gradients.
    read, written = batch.bytes_read / 2, batch.bytes_written / 2
    flops = batch.flops / _BACKWARD_FLOPS
    forward = replace(batch, variant=variant, flops=flops, bytes_read=read, bytes_written=written)
    like = evaluate(device, packs, forward)
    forward_bound, _ = describe(device, forward)
    seconds = bound * (like.seconds / forward_bound) * _BACKWARD_SLOWDOWN
    note = f"assumed forward, at {1 / _BACKWARD_SLOWDOWN:.0%} of its FLOPS"
    return BatchTimes(seconds, Origin.ROOFLINE, 0.15, _note(note, like.note))


def model_name(dtype: str, variant: str) -> str:
    """The name of the model for attention kernels of this dtype."""
    return f"attention/{_MEASURED_AS.get(dtype, dtype)}/{variant}"


def _find(packs: Packs, dtype: str, variant: str) -> Found | None:
    """The model of an implementation; those for the newest tensor cores stand in for each other."""
    found = packs.find(model_name(dtype, variant), model_name("bf16", variant))
    implementation, _, direction = variant.rpartition("_")
    if found is None and implementation in _FOR_NEWEST_TENSOR_CORES and direction == "forward":
        found = packs.find(*(f"attention/bf16/{name}_forward" for name in _FOR_NEWEST_TENSOR_CORES))
    return found


def _spread_of_similar(found: Found) -> float:
    return max(0.15, found.model.spread)


def _note(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
