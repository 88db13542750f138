"""Times of memory-bound kernels: elementwise, copies, reductions, norms, softmax, embeddings, optimizers, others.

In: batches of any memory-bound class. Out: times from the family's curve (curves.py): the device's own, else that of
the most similar device at this device's bandwidth, else that of a similar family times an assumed factor; the note says
which. Copies between host and device use the host link.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes, Floats
from maya.estimators.kernel import CLASS_TRAITS, KernelClass, Origin
from maya.estimators.models.bounds import LAUNCH_SECONDS, UNKNOWN_SECONDS, element_bytes, vector_flops
from maya.estimators.models.curves import Curve
from maya.estimators.models.families import family_of, similar_family
from maya.estimators.pack import Packs

CLASSES = tuple(name for name, traits in CLASS_TRAITS.items() if traits.time_class == "memory_bound")

_ARITHMETIC_EFFICIENCY = 0.5
_SPREAD_WITHOUT_DATA = 0.3
_SPREAD_OF_A_GUESS = 0.7
# Variants with known bytes and nothing else; most kernels take longer.
_LOWER_BOUNDS = {
    "from_pointers": (0.5, "no model: once through what its pointers point to"),
    "matrix_from_pointers": (1.0, "no model: once through what its pointers point to; it has matrix instructions"),
    "from_op": (0.5, "no model: once through the tensors of its op"),
}
_MOST_STAND_INS = 6


def evaluate(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Times of a batch of memory-bound kernels."""
    if batch.variant.startswith("part_of_"):
        seconds = np.full(len(batch), LAUNCH_SECONDS)
        return BatchTimes(seconds, Origin.ROOFLINE, _SPREAD_WITHOUT_DATA, "its time is in that of the op's main kernel")
    if not (batch.bytes_moved.any() or batch.flops.any()):
        seconds = np.full(len(batch), UNKNOWN_SECONDS)
        return BatchTimes(seconds, Origin.DEFAULT, 1.0, "nothing known but the launch")
    curve, factor, origin, note = _curve(
        packs, family_of(batch.kernel_class, batch.variant.removesuffix("_guessed"), batch.dtype)
    )
    if curve is None:
        memory = LAUNCH_SECONDS + batch.bytes_moved / device.memory_bandwidth / 0.75
    else:
        memory = curve.seconds(device, batch)
        if batch.kernel_class == KernelClass.MEMSET:  # reads nothing, so it does not wait for memory
            memory = memory - (curve.start_seconds - LAUNCH_SECONDS)
        memory = LAUNCH_SECONDS + (memory - LAUNCH_SECONDS) * factor
    others = np.maximum(_computing(device, batch), np.maximum(_sectors(device, batch), _passes(device, batch)))
    seconds = np.maximum(memory, LAUNCH_SECONDS + others)
    if batch.variant in ("strided", "transposed") and element_bytes(batch.dtype) <= 2:
        # Both were measured separately, with separate errors: narrow elements never take longer than wide ones.
        wider = 4.0 / element_bytes(batch.dtype)
        wide = replace(
            batch, dtype="fp32", bytes_read=batch.bytes_read * wider, bytes_written=batch.bytes_written * wider
        )
        seconds = np.minimum(seconds, evaluate(device, packs, wide).seconds)
    if origin == Origin.MODEL and curve is not None:
        return BatchTimes(seconds, origin, float(curve.about.get("spread", 0.1)), note)
    if batch.variant.endswith("_guessed") or batch.variant == "from_grid":
        return BatchTimes(seconds, Origin.DEFAULT, _SPREAD_OF_A_GUESS, "bytes guessed from the grid")
    if batch.kernel_class == KernelClass.UNKNOWN and batch.variant in _LOWER_BOUNDS:
        return BatchTimes(seconds, Origin.ROOFLINE, *_LOWER_BOUNDS[batch.variant])
    return BatchTimes(seconds, Origin.ROOFLINE, _SPREAD_WITHOUT_DATA, note)


def _computing(device: Device, batch: Batch) -> Floats:
    return batch.flops / (vector_flops(device, batch.dtype) * _ARITHMETIC_EFFICIENCY)


_SECTOR = 32.0  # bytes: the smallest access to the L2 cache
_L2_OVER_MEMORY = 2.0  # ratio of bandwidths


def _sectors(device: Device, batch: Batch) -> Floats:
    """Transposed accesses load one sector per element, from the L2 cache at best."""
    if batch.variant != "transposed":
        return np.zeros(len(batch))
    return batch.column("elements", 0.0) * _SECTOR / (device.memory_bandwidth * _L2_OVER_MEMORY)


# Passes of a block over its row; after each it waits for memory and for its slowest thread. The time of a pass is that
# of a layer norm with the shortest rows, which makes one (92 ns * SM per row, 16 blocks per SM).
_PASSES = {"forward": 3.0, "backward": 2.0}
_PASS_SECONDS = 1.5e-6


def _passes(device: Device, batch: Batch) -> Floats:
    """Softmax with one block per row: rows wait for a free slot on an SM."""
    if batch.kernel_class != KernelClass.SOFTMAX or "threads" not in batch.shape:
        return np.zeros(len(batch))
    threads = np.maximum(batch.column("threads", 1.0), 32.0)
    places = device.sm_count * np.clip(device.max_threads_per_sm // threads, 1, device.max_blocks_per_sm)
    passes = _PASSES["backward" if "backward" in batch.variant else "forward"]
    waiting = batch.column("rows", 0.0) / places * passes * _PASS_SECONDS
    return np.where(np.isnan(batch.shape["threads"]), 0.0, waiting)


def _curve(packs: Packs, family: str) -> tuple[Curve | None, float, Origin, str]:
    """The curve to use, how many times slower the family is assumed to be, the origin and a note."""
    factor = 1.0
    name = family
    for _ in range(_MOST_STAND_INS):
        found = packs.curve(name)
        if found is not None:
            value, origin, note = found
            curve = Curve.from_json(value)
            if name == family:
                return curve, 1.0, origin, note
            note = f"assumed {factor:.2g} times slower than {name}" + (f", {note}" if note else "")
            return curve, factor, Origin.ROOFLINE, note
        name, more = similar_family(name)
        factor *= more
    return None, 1.0, Origin.ROOFLINE, "typical efficiency, not measured for this kernel class"


# The share of a host link's nominal rate that copies reach. Pageable memory goes through a pinned buffer that one core
# fills.
_PINNED_EFFICIENCY = 0.85
_PAGEABLE_BYTES_PER_SECOND = 9e9
_TRANSFER_START = 2.0e-6
_PAGEABLE_START = 8.0e-6


def evaluate_transfer(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """Copies between host and device, and between devices."""
    size = np.maximum(batch.bytes_read, batch.bytes_written)
    pageable = batch.variant.endswith("_pageable")
    if batch.variant.startswith("PtoP"):
        rate = float(device.nvlink_bandwidth or device.host_bandwidth) * _PINNED_EFFICIENCY
        note = "rate of the link between devices"
    else:
        rate = float(device.host_bandwidth) * _PINNED_EFFICIENCY
        rate = min(rate, _PAGEABLE_BYTES_PER_SECOND) if pageable else rate
        note = "rate of the link to the host" + (", from pageable memory" if pageable else "")
    start = _PAGEABLE_START if pageable else _TRANSFER_START
    return BatchTimes(start + size / rate, Origin.ROOFLINE, 0.2, note)
