"""Times of kernels that move memory: elementwise, copies, reductions, norms, softmax, embeddings, optimizers, and the rest.

In: batches of any kind that is limited by memory. Out: times from the family's curve (curves.py): the device's own, else
that of its nearest relative on this device's bandwidth, else that of a family like it, times what is usual between the
two; the note says which. Copies between host and device go over the host's link.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Floats, Times
from maya.estimators.bounds import LAUNCH_SECONDS, vector_flops
from maya.estimators.curves import Curve, family_of, relative_of
from maya.estimators.pack import Packs
from maya.estimators.work import Kind, Origin

_ARITHMETIC_EFFICIENCY = 0.5
_UNKNOWN_SECONDS = 5e-6  # of a launch of which nothing is known
_SPREAD_WITHOUT_DATA = 0.3
_SPREAD_OF_A_GUESS = 0.7
_FURTHEST_RELATIVE = 6


def evaluate(device: Device, packs: Packs, batch: Batch) -> Times:
    """Times of a batch of works that move memory."""
    if batch.variant.startswith("part_of_"):
        seconds = np.full(len(batch), LAUNCH_SECONDS)
        return Times(seconds, Origin.ROOFLINE, _SPREAD_WITHOUT_DATA, "its time is in that of the op's main kernel")
    if not (batch.bytes_moved.any() or batch.flops.any()):
        seconds = np.full(len(batch), _UNKNOWN_SECONDS)
        return Times(seconds, Origin.DEFAULT, 1.0, "nothing known but the launch")
    curve, factor, origin, note = _curve(packs, family_of(batch.kind, batch.variant.removesuffix("_guessed")))
    if curve is None:
        moving = LAUNCH_SECONDS + batch.bytes_moved / device.memory_bandwidth / 0.75
    else:
        moving = curve.seconds(device, batch)
        moving = LAUNCH_SECONDS + (moving - LAUNCH_SECONDS) * factor
    seconds = np.maximum(moving, LAUNCH_SECONDS + _computing(device, batch))
    if origin == Origin.MODEL and curve is not None:
        return Times(seconds, origin, float(curve.about.get("spread", 0.1)), note)
    if batch.variant.endswith("_guessed") or batch.variant == "from_grid":
        return Times(seconds, Origin.DEFAULT, _SPREAD_OF_A_GUESS, "bytes guessed from the grid")
    return Times(seconds, Origin.ROOFLINE, _SPREAD_WITHOUT_DATA, note)


def _computing(device: Device, batch: Batch) -> Floats:
    return batch.flops / (vector_flops(device, batch.dtype) * _ARITHMETIC_EFFICIENCY)


def _curve(packs: Packs, family: str) -> tuple[Curve | None, float, Origin, str]:
    """The curve to use, how many times slower than it the family is taken to be, and where it is from."""
    factor = 1.0
    name = family
    for _ in range(_FURTHEST_RELATIVE):
        found = packs.curve(name)
        if found is not None:
            value, origin, note = found
            if name == family:
                return Curve.from_json(value), 1.0, origin, note
            note = f"taken to be {factor:.2g} times slower than {name}" + (f", {note}" if note else "")
            return Curve.from_json(value), factor, Origin.ROOFLINE, note
        name, more = relative_of(name)
        factor *= more
    return None, 1.0, Origin.ROOFLINE, "usual efficiency, not measured for this kind of work"


# What arrives of a host link's nominal rate. Pageable memory goes through a pinned buffer, which one core fills.
_PINNED_EFFICIENCY = 0.85
_PAGEABLE_BYTES_PER_SECOND = 9e9
_TRANSFER_START = 2.0e-6
_PAGEABLE_START = 8.0e-6


def evaluate_transfer(device: Device, packs: Packs, batch: Batch) -> Times:
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
    return Times(start + size / rate, Origin.ROOFLINE, 0.2, note)


KINDS = (
    Kind.ELEMENTWISE,
    Kind.REDUCTION,
    Kind.NORM,
    Kind.SOFTMAX,
    Kind.CROSS_ENTROPY,
    Kind.EMBEDDING,
    Kind.INDEX,
    Kind.SORT,
    Kind.RANDOM,
    Kind.OPTIMIZER,
    Kind.COPY,
    Kind.MEMSET,
    Kind.TRITON,
    Kind.UNKNOWN,
)
