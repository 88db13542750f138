"""Convolutions: forward, and the gradients of input (dgrad) and filter (wgrad).

A convolution is a GEMM of [batch * positions, channels * window] and [channels * window, filters] that reads its input
in place. In: batches with the columns batch, positions, channels, filters, window, stride, groups. Out: times. The
Winograd algorithm computes 3 x 3 convolutions with stride 1 with fewer multiplications, so their bound is lower; cuDNN
uses it in fp32 and fp16, not in tf32 or bf16.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, Floats
from maya.estimators.kernel import Origin
from maya.estimators.models.bounds import LAUNCH_SECONDS, compute_seconds, memory_seconds
from maya.estimators.models.gemm import TRITON
from maya.estimators.pack import Packs

_WINOGRAD = 4.0  # largest reduction of multiplications, by F(4 x 4, 3 x 3)
_WINOGRAD_DTYPES = ("fp32", "fp16")
_TYPICAL_EFFICIENCY = 0.4
# NCHW on tensor cores: input and result are converted to NHWC and back, one pass through memory each.
_LAYOUT_PASSES = 2.0
_TENSOR_CORES = ("fp16", "bf16", "tf32", "fp8")
_TRITON_SLOWDOWN = 1.25  # Triton against cuDNN, as for GEMMs; assumed, not measured


def describe(device: Device, batch: Batch) -> tuple[Floats, dict[str, Floats]]:
    """The bound, and the features that decide how close a convolution comes to it."""
    groups = np.maximum(batch.column("groups", 1.0), 1.0)
    m = batch.column("batch", 1.0) * batch.column("positions", 1.0)
    n = batch.column("filters", 1.0) / groups
    window, stride = batch.column("window", 1.0), batch.column("stride", 1.0)
    inputs = batch.column("channels", 1.0) / groups
    k = inputs * window
    if batch.variant == "dgrad":
        n, k = k / window, n * window
    elif batch.variant == "wgrad":
        m, n, k = k, n, m
    saved = np.ones(len(batch))
    if batch.dtype in _WINOGRAD_DTYPES and batch.variant != "wgrad":
        saved = np.where((window == 9) & (stride == 1), _WINOGRAD, 1.0)
    computing = compute_seconds(device, batch.dtype, batch.flops) / saved
    memory = memory_seconds(device, batch.bytes_moved)
    bound = LAUNCH_SECONDS + np.maximum(computing, memory)
    features = {
        "m": np.log2(np.maximum(m, 1.0)),
        "n": np.log2(np.maximum(n, 1.0)),
        "k": np.log2(np.maximum(k, 1.0)),
        "window": np.log2(window),
        # Tensor cores take channels in multiples of eight; others are padded, or computed without tensor cores.
        "padded": inputs / (8.0 * np.ceil(inputs / 8.0)),
        "stride": stride,
        "bound": np.log2(bound),
        "balance": np.log2(np.maximum(computing, 1e-12) / np.maximum(memory, 1e-12)),
        "tiles": np.log2(np.ceil(m / 128) * np.ceil(n / 128) * groups / device.sm_count),
        "filled": m * n / (np.ceil(m / 128) * np.ceil(n / 128) * 128 * 128),
    }
    return bound, features


def evaluate(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Times of convolutions."""
    if batch.variant.endswith(TRITON):
        like = evaluate(device, packs, replace(batch, variant=batch.variant.removesuffix(TRITON)))
        note = "; ".join(filter(None, (f"assumed {_TRITON_SLOWDOWN:g} times cuDNN", like.note)))
        return BatchTimes(like.seconds * _TRITON_SLOWDOWN, Origin.ROOFLINE, 0.4, note)
    bound, _ = describe(device, batch)
    names = [f"convolution/{batch.dtype}/{batch.variant}"]
    if batch.dtype in _TENSOR_CORES:
        names.append(f"convolution/fp16/{batch.variant}")
    found = packs.find(*names)
    layout = np.zeros(len(batch))
    if batch.dtype in _TENSOR_CORES:
        passes = np.where(batch.column("channels_last", 1.0) > 0, 0.0, _LAYOUT_PASSES)
        layout = passes * memory_seconds(device, batch.bytes_moved) / 0.7
    if found is None:
        return BatchTimes(
            bound / _TYPICAL_EFFICIENCY + layout, Origin.ROOFLINE, 0.4, "typical efficiency, nothing was measured"
        )
    seconds = bound * found.slowdown(batch, describe) + layout
    own = found.origin == Origin.MODEL and found.model.about.get("dtype", batch.dtype) == batch.dtype
    if own:
        return BatchTimes(seconds, Origin.MODEL, found.model.spread, found.note)
    note = found.note or "efficiency as measured in another dtype"
    return BatchTimes(seconds, Origin.ROOFLINE, max(0.3, found.model.spread), note)
