"""Estimates for kernel classes without measurements: the bound, at a typical efficiency for its bottleneck.

In: a batch of any class. Out: times of origin "roofline", or "default" where neither bytes nor FLOPs are known.
"""

from __future__ import annotations

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, BatchTimes
from maya.estimators.kernel import Origin
from maya.estimators.models.bounds import LAUNCH_SECONDS, UNKNOWN_SECONDS, compute_seconds, memory_seconds
from maya.estimators.pack import Packs

MEMORY_EFFICIENCY = 0.75
COMPUTE_EFFICIENCY = 0.6


def evaluate(device: Device, packs: Packs, batch: Batch) -> BatchTimes:
    """The roofline at typical efficiencies."""
    busy = np.maximum(
        compute_seconds(device, batch.dtype, batch.flops) / COMPUTE_EFFICIENCY,
        memory_seconds(device, batch.bytes_moved) / MEMORY_EFFICIENCY,
    )
    if not busy.any():
        return BatchTimes(np.full(len(batch), UNKNOWN_SECONDS), Origin.DEFAULT, 1.0, "nothing known but the launch")
    seconds = np.where(busy > 0, LAUNCH_SECONDS + busy, UNKNOWN_SECONDS)
    return BatchTimes(seconds, Origin.ROOFLINE, 0.4, "typical efficiency, not measured for this kernel class")
