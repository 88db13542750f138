"""How long an op takes on a GPU.

In: an op, its dimensions, a GPU. Out: `OpEstimate`: the time of each kernel that torch launches for it, what limits it,
and where the figure comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from maya.api.figures import PlainFigures
from maya.devices import Device, load_device
from maya.estimators.estimator import Estimator
from maya.estimators.kernel import Estimate, Kernel, KernelClass, Origin
from maya.estimators.models.bottleneck import bottleneck_of, peak_of
from maya.estimators.ops import kernels_for


@dataclass(frozen=True)
class KernelEstimate(PlainFigures):
    """One kernel on one GPU."""

    kernel_class: str  # "gemm", "attention", "norm", …
    variant: str
    dtype: str
    shape: dict[str, float]
    flops: float
    bytes_moved: float  # each input read once, each output written once
    time_ns: int
    bound_ns: int  # the GPU cannot be faster than this
    limited_by: str  # "tensor cores", "memory", "arithmetic", "link" or "launch"
    reached_per_second: float  # FLOPs or bytes, by `reached_unit`
    peak_per_second: float
    reached_unit: str  # "FLOPS" or "B/s"
    origin: str  # "measured", "model", "roofline" or "default"
    spread: float  # expected relative error: 0.05 is 5 %
    note: str


@dataclass(frozen=True)
class OpEstimate(PlainFigures):
    """One op on one GPU."""

    op: str
    gpu: str
    dtype: str
    time_ns: int  # of all kernels, from the start of the first to the end of the last
    bound_ns: int
    origin: str  # the worst of the kernels'
    spread: float
    kernels: tuple[KernelEstimate, ...]
    memory_peak_per_second: float  # bytes per second of the GPU's memory


def estimate(
    op: str,
    *,
    gpu: str | PathLike[str],
    dtype: str = "bf16",
    packs: Sequence[str | PathLike[str]] = (),
    **dimensions: int | str | bool,
) -> OpEstimate:
    """The time of an op: maya.estimate("gemm", m=4096, n=4096, k=4096, gpu="h100").

    `gpu`: a name in the catalogue (`maya gpus`) or a TOML file. `packs`: files that maya calibrate wrote. The
    dimensions are those of `maya estimate`, with underscores; a ValueError names missing and unknown ones.
    """
    given = {name: value for name, value in dimensions.items() if value is not None and value is not False}
    zero = [name for name, value in given.items() if not isinstance(value, str) and value <= 0]
    if zero:
        raise ValueError(f"{zero[0]} is {given[zero[0]]}; give at least 1")
    kernels = kernels_for(op, dtype, given)
    device = load_device(fspath(gpu))
    estimates = Estimator(device, [Path(pack) for pack in packs]).estimate(kernels)
    found = tuple(_kernel_estimate(device, *pair) for pair in zip(kernels, estimates, strict=True))
    time_ns = sum(each.ns for each in estimates)
    order = list(Origin)
    return OpEstimate(
        op=op,
        gpu=device.key,
        dtype=dtype,
        time_ns=time_ns,
        bound_ns=sum(each.bound_ns for each in found),
        origin=max((each.origin for each in estimates), key=order.index).value,
        spread=sum(each.ns * each.spread for each in estimates) / time_ns,
        kernels=found,
        memory_peak_per_second=float(device.memory_bandwidth),
    )


def _kernel_estimate(device: Device, kernel: Kernel, estimate: Estimate) -> KernelEstimate:
    limit = bottleneck_of(device, kernel)
    seconds = estimate.ns * 1e-9
    moved = kernel.bytes_read + kernel.bytes_written
    if limit.by in ("tensor cores", "arithmetic"):
        reached, peak, unit = kernel.flops / seconds, peak_of(device, kernel), "FLOPS"
    elif kernel.kernel_class is KernelClass.TRANSFER:
        larger = max(kernel.bytes_read, kernel.bytes_written)
        reached, peak, unit = larger / seconds, float(device.host_bandwidth), "B/s"
    else:
        reached, peak, unit = moved / seconds, float(device.memory_bandwidth), "B/s"
    return KernelEstimate(
        kernel_class=kernel.kernel_class.value,
        variant=kernel.variant,
        dtype=kernel.dtype,
        shape=dict(kernel.shape),
        flops=kernel.flops,
        bytes_moved=moved,
        time_ns=estimate.ns,
        bound_ns=round(limit.seconds * 1e9),
        limited_by=limit.by,
        reached_per_second=reached,
        peak_per_second=peak,
        reached_unit=unit,
        origin=estimate.origin.value,
        spread=estimate.spread,
        note=estimate.note,
    )
