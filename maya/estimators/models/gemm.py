"""GEMMs: cuBLAS and cuBLASLt, batched, grouped, scaled (fp8).

A GEMM is `out[m, n] = a[m, k] @ b[k, n]`, `batch` times. Variants name the layout as cuBLAS does for column-major
operands. In torch, TN is the forward of a linear layer, NN the gradient of its input, NT the gradient of its weights.
In: batches with the columns m, n, k, batch. Out: times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, Floats
from maya.estimators.kernel import Kernel, KernelClass, Origin
from maya.estimators.models.bounds import (
    LAUNCH_SECONDS,
    compute_seconds,
    element_bytes,
    l2_seconds,
    memory_seconds,
    roofline,
    wave_efficiency,
    waves,
)
from maya.estimators.pack import Describe, Found, Model, Packs

LAYOUTS = ("TN", "NN", "NT", "TT")
TRITON = "_triton"  # suffix of the variant of Triton kernels, with tiles of tile_m x tile_n
_TILES = ((64, 64), (128, 128), (128, 256), (256, 128))  # output tiles of a block

_NARROW = 64  # rows and columns of the smallest tile
_TILE_EFFECTS = 1.15  # a padded GEMM may fit the device's tiles and waves this much better

_SHORTEST = 1e-15  # seconds; keeps the logarithm of empty kernels finite
_TYPICAL_EFFICIENCY = 0.7
_MEASURED_AS = {"fp16": "bf16", "int8": "fp8", "uint8": "fp8"}
_ON_TENSOR_CORES = ("bf16", "fp16", "fp8", "tf32", "int8", "uint8")
_NO_FASTER_THAN_BF16 = ("tf32", "fp32", "fp64")

# Slowdown against TN, from SimuMax's measurements of training on A100 and B200, corrected for the bytes of fp32
# gradients.
_LAYOUT_SLOWDOWN = {"NT": 1.03, "TT": 1.03}

# The shortest time of one block on an SM: from the fastest batched GEMMs of NeuSight.
_BLOCK_SECONDS = 0.35e-6

# Assumed, not measured: (bytes, slowdown of rows that are not a multiple of these bytes); slowdowns multiply.
_MISALIGNED = ((16, 1.25), (8, 1.2), (4, 1.3))


def gemm_kernel(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: str = "bf16",
    layout: str = "TN",
    out_dtype: str | None = None,
    accumulate: bool = False,
) -> Kernel:
    """A GEMM kernel. `accumulate`: the output is read and added to (beta is not 0)."""
    out_bytes = element_bytes(out_dtype or ("bf16" if dtype == "fp8" else dtype))
    size = element_bytes(dtype)
    return Kernel(
        kernel_class=KernelClass.GEMM,
        dtype=dtype,
        flops=2.0 * batch * m * n * k,
        bytes_read=float(batch) * (size * (m * k + k * n) + (out_bytes * m * n if accumulate else 0.0)),
        bytes_written=float(batch) * out_bytes * m * n,
        shape={"m": m, "n": n, "k": k, "batch": batch},
        variant=layout,
    )


def describe(device: Device, batch: Batch) -> tuple[Floats, dict[str, Floats]]:
    """The bound, and the features that decide how close a GEMM comes to it."""
    m, n, k, count = (batch.column(name, 1.0) for name in ("m", "n", "k", "batch"))
    computing = compute_seconds(device, batch.dtype, batch.flops)
    memory = memory_seconds(device, batch.bytes_moved)
    bound = _bound(device, batch)
    features = {
        "m": np.log2(m),
        "n": np.log2(n),
        "k": np.log2(k),
        "bound": np.log2(bound),
        "balance": np.log2(np.maximum(computing, _SHORTEST) / np.maximum(memory, _SHORTEST)),
        "waves": np.log2(count * np.ceil(m / 128) * np.ceil(n / 128) / device.sm_count),
        "rows_filled": m / (64 * np.ceil(m / 64)),
    }
    for rows, columns in _TILES:
        tiles = count * np.ceil(m / rows) * np.ceil(n / columns)
        used = count * m * n / (tiles * rows * columns)
        features[f"used_{rows}x{columns}"] = used * wave_efficiency(device, tiles)
    return bound, features


def describe_closely(device: Device, batch: Batch) -> tuple[Floats, dict[str, Floats]]:
    """Features that also fit kernels without tensor cores: GEMMs per call, and how sizes divide into vectors."""
    bound, features = describe(device, batch)
    m, n, k, count = (batch.column(name, 1.0) for name in ("m", "n", "k", "batch"))
    for name, size in (("m", m), ("n", n), ("k", k)):
        features[f"{name}_divided_by"] = _power_of_two_in(size)
    features["batch"] = np.log2(count)
    features["rows_filled_128"] = m / (128 * np.ceil(m / 128))
    features["rows_filled_256"] = m / (256 * np.ceil(m / 256))
    return bound, features


def _bound(device: Device, batch: Batch) -> Floats:
    return roofline(device, batch.dtype, batch.flops, batch.bytes_moved)


def _power_of_two_in(sizes: Floats) -> Floats:
    """The logarithm of the largest power of two, up to 256, that divides a size."""
    whole = sizes.astype(np.int64)
    powers: Floats = np.log2(np.clip(whole & -whole, 1, 256))
    return powers


def _describe_for(model: Model) -> Describe:
    return describe_closely if "batch" in model.features else describe


# Slowdown of Triton's GEMMs against cuBLAS, at their best. Assumed, not measured.
_TRITON_SLOWDOWN = 1.25
_TRITON_SPREAD = 0.3
_TRITON_OF_PEAK = 0.8  # share of the peak that a block reaches on its SM


def _triton(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Times of Triton's GEMMs: slower than cuBLAS, and limited by their tiles.

    Small tiles read the operands more often, from the L2 cache; large ones leave SMs idle. Autotuning measures
    candidates with different tiles, so it depends on this.
    """
    like = evaluate(device, packs, replace(batch, variant=batch.variant.removesuffix(TRITON)))
    m, n, k, count = (batch.column(name, 1.0) for name in ("m", "n", "k", "batch"))
    rows, columns = batch.column("tile_m", 128.0), batch.column("tile_n", 128.0)
    tiles = count * np.ceil(m / rows) * np.ceil(n / columns)
    reading = l2_seconds(device, tiles * k * (rows + columns) * element_bytes(batch.dtype))
    in_turn = np.ceil(waves(device, tiles)) * device.sm_count
    computing = compute_seconds(device, batch.dtype, 2.0 * rows * columns * k * in_turn) / _TRITON_OF_PEAK
    seconds = np.maximum(like.seconds * _TRITON_SLOWDOWN, LAUNCH_SECONDS + np.maximum(reading, computing))
    note = f"assumed {_TRITON_SLOWDOWN:g} times cuBLAS, or as its tiles allow"
    return BatchTimes(seconds, Origin.ROOFLINE, _TRITON_SPREAD, "; ".join(filter(None, (note, like.note))))


def evaluate(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Times of GEMMs: from the learned model, but no less than the time of their blocks when many are tiny."""
    if batch.variant.endswith(TRITON):
        return _triton(device, packs, batch)
    seconds, origin, spread, note = _learned(device, packs, batch)
    m, n, count = (batch.column(name, 1.0) for name in ("m", "n", "batch"))
    blocks = count * np.ceil(m / 128) * np.ceil(n / 128)
    seconds = np.maximum(seconds, LAUNCH_SECONDS + blocks * _BLOCK_SECONDS / device.sm_count)
    if batch.dtype in _NO_FASTER_THAN_BF16:
        halves = replace(batch, dtype="bf16", bytes_read=batch.bytes_read / 2, bytes_written=batch.bytes_written / 2)
        seconds = np.maximum(seconds, _learned(device, packs, halves)[0])
    return BatchTimes(seconds, origin, spread, note)


def _learned(device: Device, packs: Packs, batch: Batch) -> tuple[Floats, Origin, float, str]:
    """Times from the device's own model in this dtype, or a similar device's, or that of another dtype."""
    bound = _bound(device, batch)
    slower = penalty(batch)
    found = packs.find(*dict.fromkeys((f"gemm/{batch.dtype}", model_name(batch.dtype))))
    if found is not None:
        spread = found.model.spread if found.origin is Origin.MODEL else max(0.12, found.model.spread)
        slowdown = _joined(found, packs.find("gemm/bf16"), batch)
        return bound * slowdown * slower, found.origin, spread, found.note
    found = packs.find("gemm/bf16")
    if found is None:
        return bound / _TYPICAL_EFFICIENCY * slower, Origin.ROOFLINE, 0.3, "typical efficiency, nothing was measured"
    note = f"efficiency as measured in bf16{found.note.removeprefix('efficiency as measured')}"
    return bound * _slowdown(found, batch) * slower, Origin.ROOFLINE, max(0.15, found.model.spread), note


def _joined(found: Found, other: Found | None, batch: Batch) -> Floats:
    """Slowdowns from the model; for GEMMs shorter than any in its training data, from the model of bf16."""
    bound = _bound(found.described_on, batch)
    slowdown = _slowdown(found, batch)
    shortest = float(found.model.about["shortest_bound"])
    everything = shortest < 3 * LAUNCH_SECONDS
    if everything or other is None or other.model is found.model or bound.min() > 2 * shortest:
        return slowdown
    share = np.clip(np.log2(bound / shortest), 0.0, 1.0)
    joined: Floats = np.exp(share * np.log(slowdown) + (1 - share) * np.log(_slowdown(other, batch)))
    return joined


def _slowdown(found: Found, batch: Batch) -> Floats:
    """Slowdowns from a model. A GEMM narrower than any in its training data is treated as the narrowest one, which
    fills as little of a tile. No GEMM takes much longer than one that is padded to a tile: a model that says so has
    learned it from too few narrow ones."""
    smallest = found.model.about.get("smallest", {})
    slowdown = _modelled(found, _padded(batch, smallest))
    m, n = (batch.column(name, 1.0) for name in ("m", "n"))
    narrow = np.flatnonzero((m < _NARROW) & (n < _NARROW))
    if len(narrow):
        few = batch.at(narrow)
        tile = _padded(few, {**smallest, "m": _NARROW, "n": _NARROW})
        longest = _modelled(found, tile) * _bound(found.described_on, tile) / _bound(found.described_on, few)
        slowdown[narrow] = np.where(slowdown[narrow] > _TILE_EFFECTS * longest, longest, slowdown[narrow])
    return slowdown


def _modelled(found: Found, batch: Batch) -> Floats:
    slowdown: Floats = np.array(found.slowdown(batch, _describe_for(found.model)))
    return slowdown


def _padded(batch: Batch, smallest: Mapping[str, float]) -> Batch:
    """The GEMMs with dimensions of at least these sizes."""
    m, n, k = (np.maximum(batch.column(name, 1.0), 1.0) for name in ("m", "n", "k"))  # some are empty
    wider = [np.maximum(size, smallest.get(name, 1.0)) for name, size in (("m", m), ("n", n), ("k", k))]
    if not ((wider[0] > m).any() or (wider[1] > n).any() or (wider[2] > k).any()):
        return batch
    return replace(
        batch,
        flops=batch.flops * (wider[0] * wider[1] * wider[2]) / (m * n * k),
        bytes_read=batch.bytes_read * (wider[0] + wider[1]) * wider[2] / ((m + n) * k),
        bytes_written=batch.bytes_written * (wider[0] * wider[1]) / (m * n),
        shape={**batch.shape, "m": wider[0], "n": wider[1], "k": wider[2]},
    )


def model_name(dtype: str) -> str:
    """The name of the model for GEMMs of this dtype."""
    return f"gemm/{_MEASURED_AS.get(dtype, dtype)}"


def penalty(batch: Batch) -> Floats:
    """Slowdown against a GEMM with aligned rows in layout TN, which the models predict.

    Rows that do not begin at a multiple of 16 bytes cannot be loaded in one piece.
    """
    if batch.dtype not in _ON_TENSOR_CORES:
        return np.full(len(batch), _LAYOUT_SLOWDOWN.get(batch.variant, 1.0))
    contiguous = ("m", "n") if batch.variant == "NT" else ("k", "n")
    sizes = [batch.column(name, 16.0) * element_bytes(batch.dtype) for name in contiguous]
    slowdown = np.full(len(batch), _LAYOUT_SLOWDOWN.get(batch.variant, 1.0))
    for aligned_to, factor in _MISALIGNED:
        slowdown[np.logical_or.reduce([size % aligned_to != 0 for size in sizes])] *= factor
    return slowdown
