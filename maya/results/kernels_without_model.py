"""Kernels without a model: their share of a step's launches, bytes and time, and whether it matters.

In: a `Timeline` and its `Steps`. Out: `KernelsWithoutModel`, and a sentence about it. The time of such a kernel (mostly
hand-written Triton or CUDA) is that of one pass over its tensors, or a guess from its grid. Maya does not know what the
kernel computes, so its share of time alone would hide the problem: a kernel that is priced too low has a small share.
Therefore launches and bytes count as well, and whether the kernel uses tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maya.estimators.features.from_trace import TracedKernel
from maya.replay.timeline import Timeline
from maya.results.steps import Steps
from maya.util.text import bytes_text, share_text

_MATTERS = 0.05  # from this share of launches, bytes or time on, the step may take noticeably longer
_MATTERS_ON_TENSOR_CORES = 0.01  # share of bytes: on tensor cores a byte may stand for hundreds of operations


@dataclass(frozen=True)
class KernelsWithoutModel:
    """Totals of a step over all ranks (mean over the measured steps)."""

    launches: int
    launch_share: float  # of the launches of all kernels and library calls
    bytes: int  # read and written, each tensor once
    byte_share: float  # of the bytes of all kernels and library calls
    ns: int
    time_share: float  # of the time of all kernels
    matrix_byte_share: float  # share of bytes of the kernels that use tensor cores
    name: str  # of the kernel that touches most bytes in a step
    place: str  # of that kernel: "file.py:31", or nothing
    name_bytes: int  # bytes of that kernel at one launch

    @property
    def could_matter(self) -> bool:
        """Whether the step may take noticeably longer than predicted."""
        share = max(self.launch_share, self.byte_share, self.time_share)
        return share >= _MATTERS or self.matrix_byte_share >= _MATTERS_ON_TENSOR_CORES

    @property
    def text(self) -> str:
        """One sentence; empty if all kernels have a model."""
        if not self.launches:
            return ""
        shares = (
            f"{share_text(self.launch_share)} of launches, {share_text(self.byte_share)} of bytes, "
            f"{share_text(self.time_share)} of kernel time"
        )
        place = f" ({self.place})" if self.place else ""
        largest = f"{self.name}{place} touches most, {bytes_text(self.name_bytes)} at a launch"
        matrix = ", and some use tensor cores" if self.matrix_byte_share else ""
        warning = f"; the step may take longer than predicted{matrix}" if self.could_matter else ""
        kernels = f"{self.launches:,} kernel{'s' if self.launches != 1 else ''}"
        return f"{kernels} a step ({shares}) priced by bytes alone, a lower bound; {largest}{warning}"


def find_kernels_without_model(timeline: Timeline, steps: Steps) -> KernelsWithoutModel:
    """Kernels without a model in the measured steps."""
    launches = touched = ns = 0.0  # without a model
    all_launches = all_touched = all_ns = matrix = 0.0
    by_kernel: dict[tuple[str, str, int], float] = {}
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        kernels = group.rank_class.kernels
        if not kernels:
            continue
        moved = np.array([item.kernel.bytes_read + item.kernel.bytes_written for item in kernels])
        is_kernel = np.array([item.launch.what in ("kernel", "library") for item in kernels])
        lacks = np.array([not item.kernel.has_model for item in kernels]) & is_kernel
        on_tensor_cores = lacks & np.array([item.launch.tensor_cores for item in kernels])
        for step in steps.measured:
            rows = slice(int(own_steps.rows[step]), int(own_steps.rows[step + 1]))
            numbers = group.rank_class.kernel[rows]
            chosen = numbers >= 0
            durations = (group.end_ns[rows, 0] - group.start_ns[rows, 0])[chosen]
            ranks = len(group.ranks)
            times = np.bincount(numbers[chosen], minlength=len(kernels)) * ranks
            busy = np.bincount(numbers[chosen], weights=durations, minlength=len(kernels)) * ranks
            all_launches += float(times[is_kernel].sum())
            all_touched += float((times * moved)[is_kernel].sum())
            all_ns += float(busy.sum())
            launches += float(times[lacks].sum())
            touched += float((times * moved)[lacks].sum())
            ns += float(busy[lacks].sum())
            matrix += float((times * moved)[on_tensor_cores].sum())
            for at in np.flatnonzero(lacks & (times > 0)).tolist():
                key = (kernels[at].launch.function, _place(kernels[at]), int(moved[at]))
                by_kernel[key] = by_kernel.get(key, 0.0) + float(times[at] * moved[at])
    count = max(len(steps.measured), 1)
    (name, place, size), _ = min(by_kernel.items(), key=lambda item: (-item[1], item[0]), default=(("", "", 0), 0.0))
    return KernelsWithoutModel(
        launches=round(launches / count),
        launch_share=launches / max(all_launches, 1.0),
        bytes=round(touched / count),
        byte_share=touched / max(all_touched, 1.0),
        ns=round(ns / count),
        time_share=ns / max(all_ns, 1.0),
        matrix_byte_share=matrix / max(all_touched, 1.0),
        name=name,
        place=place,
        name_bytes=size,
    )


def _place(item: TracedKernel) -> str:
    launch = item.launch
    return f"{launch.source}:{launch.line}" if launch.source else ""
