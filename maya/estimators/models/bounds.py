"""Bounds of a device: the roofline, with the launch of a kernel, waves of blocks and the clock under load.

In: a `Device`, FLOPs and bytes. Out: seconds. Models divide these by an efficiency between 0 and 1, so that no estimate
is faster than the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maya.devices import Device

Floats = npt.NDArray[np.float64]

BYTES_PER_ELEMENT = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int64": 8.0,
    "int32": 4.0,
    "int16": 2.0,
    "int8": 1.0,
    "uint8": 1.0,
    "bool": 1.0,
    "fp4": 0.5,
    "complex64": 8.0,
    "complex128": 16.0,
}

# From the start of the first block to the end of the last in an empty kernel. The shortest kernels of public
# measurements take 1.7 us (B200, L40S) to 2.5 us (A100, H100), which includes their own reads and writes.
LAUNCH_SECONDS = 1.5e-6
UNKNOWN_SECONDS = 5e-6  # assumed for a kernel with a known launch and nothing else

_L2_BYTES_PER_CLOCK = 32.0  # from the L2 cache to one SM: half of the port's width, the rate that kernels reach
_L2_SHARE = 0.75  # largest share of the cache that holds data for the next kernel


def element_bytes(dtype: str) -> float:
    """Bytes of one element; 4 for an unknown dtype."""
    return BYTES_PER_ELEMENT.get(dtype, 4.0)


def peak_flops(device: Device, dtype: str) -> float:
    """The device's peak for GEMMs in this dtype. A dtype that its tensor cores lack runs in one that they have."""
    half = float(device.fp16_flops)
    single = float(device.fp32_flops)
    if dtype == "fp16":
        return half
    if dtype == "bf16":
        return float(device.bf16_flops or single)  # before Ampere, bf16 is computed in fp32
    if dtype in ("fp8", "int8", "uint8", "fp4"):
        eight_bits = float(device.fp8_flops or (2.0 * half if device.compute_capability >= (8, 0) else half))
        return 2.0 * eight_bits if dtype == "fp4" and device.compute_capability >= (10, 0) else eight_bits
    if dtype == "tf32":
        return float(device.tf32_flops or single)
    if dtype in ("fp64", "complex128"):
        return float(device.fp64_flops or single / 64)
    return single


def vector_flops(device: Device, dtype: str) -> float:
    """The device's peak outside its tensor cores: elementwise kernels and reductions compute in fp32 or fp64."""
    if dtype in ("fp64", "complex128"):
        return min(float(device.fp64_flops or device.fp32_flops / 64), float(device.fp32_flops) / 2)
    return float(device.fp32_flops)


def clock_under_load(device: Device, dtype: str) -> float:
    """The sustained clock of the tensor cores, relative to that of the peaks; 1 if power does not cap it."""
    if peak_flops(device, dtype) <= vector_flops(device, dtype):
        return 1.0
    reference = device.tensor_clock_hz or device.clock_hz
    return min(1.0, (device.sustained_clock_hz or reference) / reference)


def compute_seconds(device: Device, dtype: str, flops: Floats) -> Floats:
    """Compute time on tensor cores, at the clock that the power limit allows."""
    return flops / (peak_flops(device, dtype) * clock_under_load(device, dtype))


def memory_seconds(device: Device, moved: Floats) -> Floats:
    """Time to move all bytes from and to memory."""
    return moved / float(device.memory_bandwidth)


def l2_seconds(device: Device, moved: Floats) -> Floats:
    """Time to move bytes from the L2 cache to the SMs."""
    return moved / max(_L2_BYTES_PER_CLOCK * device.sm_count * device.clock_hz, float(device.memory_bandwidth))


def cached_seconds(device: Device, moved: Floats) -> Floats:
    """Time to move bytes, as many as possible from the L2 cache, where the kernel before left them."""
    cached = np.minimum(moved, _L2_SHARE * device.l2_bytes)
    return l2_seconds(device, cached) + memory_seconds(device, moved - cached)


def roofline(device: Device, dtype: str, flops: Floats, moved: Floats) -> Floats:
    """The launch plus the larger of compute time on tensor cores and memory time; never zero."""
    busy = np.maximum(compute_seconds(device, dtype, flops), cached_seconds(device, moved))
    return LAUNCH_SECONDS + busy


def waves(device: Device, blocks: Floats, blocks_per_sm: float = 1.0) -> Floats:
    """The number of waves that `blocks` blocks take on all SMs."""
    return blocks / (device.sm_count * blocks_per_sm)


def wave_efficiency(device: Device, blocks: Floats, blocks_per_sm: float = 1.0) -> Floats:
    """The share of SM time in use, given that the last wave is not full; 1 for whole waves."""
    share = waves(device, np.maximum(blocks, 1.0), blocks_per_sm)
    return share / np.ceil(share)
