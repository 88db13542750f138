"""The bound of a kernel on a device and its cause, to compare an estimate with.

In: a `Device` and a `Kernel`. Out: a `Bottleneck`. It is the plain roofline: the launch, plus the longest of moving
each tensor once, computing on tensor cores (GEMMs, attention) or outside them, and the link of a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maya.devices import Device
from maya.estimators.kernel import CLASS_TRAITS, Kernel, KernelClass
from maya.estimators.models.bounds import (
    LAUNCH_SECONDS,
    cached_seconds,
    compute_seconds,
    memory_seconds,
    peak_flops,
    vector_flops,
)

TENSOR_CORE_CLASSES = frozenset(name for name, traits in CLASS_TRAITS.items() if traits.uses_tensor_cores)

# A kernel is launch-bound if its launch is more than this share of its bound.
_LAUNCH_SHARE = 0.5


@dataclass(frozen=True)
class Bottleneck:
    """A bound in seconds and its cause."""

    seconds: float
    by: str  # "launch", "memory", "tensor cores", "arithmetic", "link"


def peak_of(device: Device, kernel: Kernel) -> float:
    """The device's peak FLOPS for this kernel."""
    return (
        peak_flops(device, kernel.dtype)
        if kernel.kernel_class in TENSOR_CORE_CLASSES
        else vector_flops(device, kernel.dtype)
    )


def bottleneck_of(device: Device, kernel: Kernel) -> Bottleneck:
    """The bound of a kernel."""
    moved = np.array([kernel.bytes_read + kernel.bytes_written])
    if kernel.kernel_class is KernelClass.TRANSFER:
        size = max(kernel.bytes_read, kernel.bytes_written)
        between_devices = kernel.variant.startswith("PtoP") and device.nvlink_bandwidth
        rate = device.nvlink_bandwidth if between_devices else device.host_bandwidth
        parts = {"link": size / float(rate or device.host_bandwidth)}
    elif kernel.kernel_class in TENSOR_CORE_CLASSES:
        # Some of their operands are still in the L2 cache.
        computing = float(compute_seconds(device, kernel.dtype, np.array([kernel.flops]))[0])
        parts = {"memory": float(cached_seconds(device, moved)[0]), "tensor cores": computing}
    else:
        parts = {
            "memory": float(memory_seconds(device, moved)[0]),
            "arithmetic": kernel.flops / peak_of(device, kernel),
        }
    by = max(parts, key=lambda part: parts[part])
    seconds = LAUNCH_SECONDS + parts[by]
    return Bottleneck(seconds, "launch" if _LAUNCH_SHARE * seconds < LAUNCH_SECONDS else by)
