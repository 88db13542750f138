"""How fast a job trains: tokens per second, utilisation of the GPUs' peak (MFU, HFU), and cost.

In: a `Timeline`, its `Steps`, and tokens and price as the user gave them. Out: a `Throughput`.

HFU counts the FLOPs of all GEMMs, attention, convolutions and recurrent layers that were launched. MFU leaves out
recomputation for backward (activation checkpointing): GEMMs inside a backward pass that equal one of the forward pass,
including strides. Peaks are those of the dtypes of the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maya.estimators.models.bottleneck import TENSOR_CORE_CLASSES
from maya.estimators.models.bounds import peak_flops
from maya.replay.rank_class import RankClass
from maya.replay.timeline import Timeline
from maya.results.forward_backward import in_backward
from maya.results.steps import Steps
from maya.results.tokens_per_step import GIVEN, Samples, SamplesUnknown, find_samples
from maya.trace.streams import find_streams
from maya.util.arrays import Booleans, Floats, Indices

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Throughput:
    """Throughput of the whole job. Its step time is the median of the measured steps."""

    step_ns: int
    gpus: int  # one for each rank, or more where a rank drives several
    samples: Samples | None  # None: not given, and the traces do not show it
    no_samples: str  # why `samples` is None
    flops_per_step: float  # of all ranks together
    recomputed_flops_per_step: float
    hfu: float | None  # None: no kernel used tensor cores
    mfu: float | None
    price_per_gpu_hour: float | None  # given

    @property
    def samples_per_second(self) -> float | None:
        return None if self.samples is None or not self.step_ns else self.samples.per_step / self.step_ns * 1e9

    @property
    def samples_per_second_per_gpu(self) -> float | None:
        rate = self.samples_per_second
        return None if rate is None else rate / self.gpus

    @property
    def gpu_hours_per_step(self) -> float:
        return self.gpus * self.step_ns / 1e9 / _SECONDS_PER_HOUR

    @property
    def gpu_hours_per_billion(self) -> float | None:
        """GPU hours for a billion tokens or images."""
        rate = self.samples_per_second
        return None if not rate else self.gpus * 1e9 / rate / _SECONDS_PER_HOUR

    @property
    def price_per_step(self) -> float | None:
        return None if self.price_per_gpu_hour is None else self.gpu_hours_per_step * self.price_per_gpu_hour

    @property
    def price_per_billion(self) -> float | None:
        hours = self.gpu_hours_per_billion
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour


def find_throughput(
    timeline: Timeline, steps: Steps, tokens_per_step: int | None = None, price_per_gpu_hour: float | None = None
) -> Throughput:
    """The throughput of a job."""
    samples: Samples | None
    samples, no_samples = None, ""
    if tokens_per_step is not None:
        samples = Samples(tokens_per_step, "tokens", GIVEN)
    else:
        try:
            samples = find_samples(timeline, steps)
        except SamplesUnknown as reason:
            no_samples = str(reason)
    flops = ideal = again = ideal_again = 0.0
    by_rank_class: dict[int, tuple[Floats, Floats, Booleans]] = {}
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        if id(group.rank_class) not in by_rank_class:
            repeats = recomputed(group.rank_class, own_steps.rows)
            by_rank_class[id(group.rank_class)] = *_flops(group.rank_class, timeline), repeats
        per_row, ideal_per_row, repeated = by_rank_class[id(group.rank_class)]
        for step in steps.measured:
            rows = slice(int(own_steps.rows[step]), int(own_steps.rows[step + 1]))
            flops += float(per_row[rows].sum()) * len(group.ranks)
            ideal += float(ideal_per_row[rows].sum()) * len(group.ranks)
            again += float(per_row[rows][repeated[rows]].sum()) * len(group.ranks)
            ideal_again += float(ideal_per_row[rows][repeated[rows]].sum()) * len(group.ranks)
    count = len(steps.measured)
    gpus = timeline.world_size + sum((_devices(group.rank_class) - 1) * len(group.ranks) for group in timeline.groups)
    available = steps.median_ns * gpus * count
    used = ideal / available if ideal and available else None
    return Throughput(
        step_ns=steps.median_ns,
        gpus=gpus,
        samples=samples,
        no_samples=no_samples,
        flops_per_step=flops / count,
        recomputed_flops_per_step=again / count,
        hfu=used,
        mfu=None if used is None else (ideal - ideal_again) / available,
        price_per_gpu_hour=price_per_gpu_hour,
    )


def _devices(rank_class: RankClass) -> int:
    """How many GPUs a rank uses: more than one with nn.DataParallel."""
    streams = find_streams(rank_class.trace)
    if not streams.homes:
        return 1
    used = np.unique(rank_class.trace.records["stream"][rank_class.records[rank_class.kernel >= 0]]).tolist()
    return max(1, len({streams.home(stream) for stream in used}))


def _flops(rank_class: RankClass, timeline: Timeline) -> tuple[Floats, Floats]:
    """For each row: FLOPs on tensor cores, and the nanoseconds that they take at the peak rate."""
    flops = [
        item.kernel.flops if item.kernel.kernel_class in TENSOR_CORE_CLASSES else 0.0 for item in rank_class.kernels
    ]
    ideal = [
        count / peak_flops(timeline.device, item.kernel.dtype) * 1e9 if count else 0.0
        for count, item in zip(flops, rank_class.kernels, strict=True)
    ]
    at = np.maximum(rank_class.kernel, 0)
    is_kernel = rank_class.kernel >= 0
    return (
        np.where(is_kernel, np.array(flops or [0.0])[at], 0.0),
        np.where(is_kernel, np.array(ideal or [0.0])[at], 0.0),
    )


def recomputed(rank_class: RankClass, bounds: Indices) -> Booleans:
    """Which rows recompute, inside a backward pass, a kernel of the forward pass of the same step."""
    found = np.zeros(len(rank_class.records), dtype=bool)
    heavy = np.array(
        [item.kernel.kernel_class in TENSOR_CORE_CLASSES for item in rank_class.kernels] or [False], dtype=bool
    )
    heavy_rows = heavy[np.maximum(rank_class.kernel, 0)] & (rank_class.kernel >= 0)
    backward = in_backward(rank_class.trace, rank_class.trace.records["op"][rank_class.records])
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = np.arange(first, last)[heavy_rows[first:last]]
        kernels, inside = rank_class.kernel[rows], backward[rows]
        for kernel in np.intersect1d(kernels[inside], kernels[~inside]).tolist():
            times = int(((kernels == kernel) & ~inside).sum())
            found[rows[(kernels == kernel) & inside][:times]] = True
    return found
