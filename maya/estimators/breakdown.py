"""The time of a trace by kernel class and by origin, on one device.

In: the kernels of a trace (features/) and a device. Out: a `Breakdown`: sums over all launches, as if they ran one
after the other. It ignores overlap and waiting, and leaves out collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from maya.devices import Device
from maya.estimators.estimator import Estimator
from maya.estimators.features import TracedKernels
from maya.estimators.kernel import Estimate, KernelClass, Origin
from maya.estimators.models.bottleneck import TENSOR_CORE_CLASSES
from maya.estimators.models.bounds import peak_flops
from maya.trace import RecordKind, Trace
from maya.util.suggestions import did_you_mean


@dataclass
class BreakdownRow:
    """One kernel class, or the total."""

    launches: int = 0
    different: int = 0
    ns: int = 0
    by_origin: dict[Origin, int] = field(default_factory=dict)  # ns

    def add(self, estimate: Estimate, count: int) -> None:
        self.launches += count
        self.different += 1
        self.ns += estimate.ns * count
        self.by_origin[estimate.origin] = self.by_origin.get(estimate.origin, 0) + estimate.ns * count


@dataclass(frozen=True)
class Breakdown:
    """All kernels of a trace on one device."""

    device: Device
    estimates: list[Estimate]  # one per kernel of the trace, in its order
    classes: dict[KernelClass, BreakdownRow]
    total: BreakdownRow
    flops: float  # of GEMMs, attention and convolutions
    ideal_ns: float  # the time of these FLOPs at the peaks of their dtypes

    @property
    def peak_share(self) -> float:
        """The share of the device's peak that the whole trace reaches."""
        return self.ideal_ns / self.total.ns if self.total.ns else 0.0


def break_down(traced: TracedKernels, device: Device, packs: Sequence[Path] = ()) -> Breakdown:
    """Estimate everything in a trace."""
    estimates = Estimator(device, packs).estimate([item.kernel for item in traced.kernels])
    classes: dict[KernelClass, BreakdownRow] = {}
    total = BreakdownRow()
    flops = ideal = 0.0
    for item, estimate in zip(traced.kernels, estimates, strict=True):
        classes.setdefault(item.kernel.kernel_class, BreakdownRow()).add(estimate, item.count)
        total.add(estimate, item.count)
        if item.kernel.kernel_class in TENSOR_CORE_CLASSES:
            flops += item.kernel.flops * item.count
            ideal += item.kernel.flops * item.count / peak_flops(device, item.kernel.dtype) * 1e9
    ordered = dict(sorted(classes.items(), key=lambda entry: (-entry[1].ns, entry[0].value)))
    return Breakdown(device, estimates, ordered, total, flops, ideal)


def only_within(trace: Trace, traced: TracedKernels, name: str) -> TracedKernels:
    """The kernels launched while an annotation of this name (torch.profiler.record_function) was open, on any thread:
    backward runs on its own thread."""
    annotations = trace.ops[trace.ops["kind"] == RecordKind.ANNOTATION]
    names = annotations["name"].astype(str)
    chosen = annotations[names == name]
    if not len(chosen):
        known = sorted(set(names.tolist()))
        listed = (
            f"it has: {', '.join(known[:20])}" if known else "it has none (torch.profiler.record_function makes them)"
        )
        raise ValueError(f'{trace.path}: no annotation "{name}"{did_you_mean(name, known)}; {listed}')
    inside = np.zeros(len(traced.records), dtype=bool)
    times = traced.records["host_ns"]
    for begun, lasted in zip(chosen["start_ns"].tolist(), chosen["duration_ns"].tolist(), strict=True):
        inside |= (times >= begun) & (times <= begun + lasted)
    which = traced.which[inside]
    used, renumbered, counts = np.unique(which, return_inverse=True, return_counts=True)
    kernels = [
        replace(traced.kernels[at], count=count) for at, count in zip(used.tolist(), counts.tolist(), strict=True)
    ]
    return TracedKernels(kernels, traced.records[inside], renumbered.reshape(-1))
