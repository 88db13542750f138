"""How long the kernels of a trace take on a GPU, one after the other.

In: a trace and a GPU. Out: `TraceEstimate`: sums by kernel class and by origin, and each distinct kernel. Overlap,
waiting and collectives are not in it; `Run.predict` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from maya.api.figures import FigureTable, PlainFigures
from maya.devices import device_names, load_device
from maya.estimators.breakdown import BreakdownRow, break_down, only_within
from maya.estimators.features import TracedKernel, kernels_of
from maya.estimators.kernel import Estimate
from maya.trace import Trace, read


@dataclass(frozen=True)
class TraceKernel(PlainFigures):
    """All launches of one kernel with the same sizes from the same op."""

    kernel_class: str
    variant: str
    dtype: str
    shape: dict[str, float]
    op: str
    launches: int
    time_ns: int  # of one launch
    total_ns: int
    origin: str
    spread: float


@dataclass(frozen=True)
class KernelClassTime(PlainFigures):
    """All kernels of one class, or of the whole trace."""

    kernel_class: str
    launches: int
    distinct: int
    total_ns: int


class TraceEstimate:
    """The kernels of a trace on one GPU."""

    def __init__(
        self,
        trace: Trace,
        gpu: str,
        kernels: Sequence[TraceKernel],
        classes: Sequence[KernelClassTime],
        origin_ns: dict[str, int],
        flops: float,
        peak_share: float,
    ) -> None:
        self.trace = trace
        self.gpu = gpu
        self.total_ns = sum(each.total_ns for each in classes)
        self.launches = sum(each.launches for each in classes)
        self.origin_ns = origin_ns  # time by origin: "measured", "model", "roofline", "default"
        self.flops = flops  # of matrix products, attention and convolutions
        self.peak_share = peak_share  # of the GPU's peak FLOPS, over the whole time
        self.kernels = FigureTable(TraceKernel, kernels)  # in the order of the trace
        self.classes = FigureTable(KernelClassTime, classes, index="kernel_class")  # the longest first

    def __repr__(self) -> str:
        return f"<TraceEstimate of {self.trace.path} on {self.gpu}: {self.total_ns / 1e6:.3f} ms>"


def estimate_trace(
    trace: Trace | str | PathLike[str],
    *,
    gpu: str | PathLike[str] | None = None,
    within: str | None = None,
    packs: Sequence[str | PathLike[str]] = (),
) -> TraceEstimate:
    """The times of all kernels, library calls, copies and memsets of a trace.

    `gpu`: a name in the catalogue or a TOML file; by default the GPU that the trace was recorded on. `within`: only
    launches inside annotations (torch.profiler.record_function) of this name. `packs`: files that maya calibrate wrote.
    """
    if not isinstance(trace, Trace):
        trace = read(trace)
    name = recorded_gpu(trace) if gpu is None else fspath(gpu)
    if name is None:
        raise ValueError(unknown_gpu(trace))
    device = load_device(name)
    traced = kernels_of(trace)
    if within is not None:
        traced = only_within(trace, traced, within)
    if not traced.kernels:
        raise ValueError(
            f"{trace.path}: no kernel, library call, copy or memset is in it; maya trace show lists the rest"
        )
    found = break_down(traced, device, [Path(pack) for pack in packs])
    kernels = [_kernel(*pair) for pair in zip(traced.kernels, found.estimates, strict=True)]
    classes = [_class(name.value, row) for name, row in found.classes.items()]
    origins = {origin.value: ns for origin, ns in found.total.by_origin.items()}
    return TraceEstimate(trace, device.key, kernels, classes, origins, found.flops, found.peak_share)


def recorded_gpu(trace: Trace) -> str | None:
    """The catalogue's name of the GPU that a trace was recorded on; None: none has CUDA's name for it, or several."""
    found = [name for name in device_names() if load_device(name).name == trace.header.gpu]
    return found[0] if len(found) == 1 else None


def unknown_gpu(trace: Trace) -> str:
    """The error where `recorded_gpu` finds none."""
    return f'{trace.path} was recorded on "{trace.header.gpu}", which is no GPU of the catalogue; name a GPU'


def _kernel(item: TracedKernel, estimate: Estimate) -> TraceKernel:
    kernel = item.kernel
    return TraceKernel(
        kernel_class=kernel.kernel_class.value,
        variant=kernel.variant,
        dtype=kernel.dtype,
        shape=dict(kernel.shape),
        op=item.launch.op.removeprefix("aten::"),
        launches=item.count,
        time_ns=estimate.ns,
        total_ns=estimate.ns * item.count,
        origin=estimate.origin.value,
        spread=estimate.spread,
    )


def _class(name: str, row: BreakdownRow) -> KernelClassTime:
    return KernelClassTime(name, row.launches, row.different, row.ns)
