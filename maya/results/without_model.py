"""Kernels without a model: how many of a step's kernels they are, by number, bytes and time, and when that matters.

In: a `Timeline` and its `Steps`. Out: `WithoutModel`, and a sentence about it. Such a kernel (hand-written Triton or
CUDA, as a rule) takes what it takes to go once through its tensors, or what its grid suggests. What it computes is not
known, so a share of time alone would hide it: whatever is priced too low has a small share. That is why launches and
bytes count, and whether it uses tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maya.estimators.features.from_trace import TracedKernel
from maya.replay.timeline import Timeline
from maya.results.steps import Steps
from maya.util.text import bytes_text, share_text

_MATTERS = 0.05  # share of launches, bytes or time from which on the step may take noticeably longer
_MATTERS_ON_TENSOR_CORES = 0.01  # share of bytes; there, a byte may stand for hundreds of operations


@dataclass(frozen=True)
class WithoutModel:
    """Of a step, all ranks together (mean over the measured steps)."""

    launches: int
    launch_share: float  # of the launches of all kernels and library calls
    bytes: int  # that they touch, each tensor once
    byte_share: float  # of what all kernels and library calls touch
    ns: int
    time_share: float  # of the time of all works
    matrix_byte_share: float  # the share of bytes of those that use tensor cores
    name: str  # the kernel that touches most bytes in a step ...
    place: str  # ... "file.py:31", or nothing
    name_bytes: int  # ... and how many at one launch

    @property
    def could_matter(self) -> bool:
        """Whether the step may take noticeably longer than is said."""
        share = max(self.launch_share, self.byte_share, self.time_share)
        return share >= _MATTERS or self.matrix_byte_share >= _MATTERS_ON_TENSOR_CORES

    @property
    def text(self) -> str:
        """One sentence; nothing if there are none."""
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


def find_without_model(timeline: Timeline, steps: Steps) -> WithoutModel:
    """Kernels without a model in the measured steps."""
    launches = touched = ns = 0.0  # without a model
    all_launches = all_touched = all_ns = matrix = 0.0
    by_kernel: dict[tuple[str, str, int], float] = {}
    for one, own_steps in zip(timeline.groups, steps.groups, strict=True):
        works = one.rank_class.kernels
        if not works:
            continue
        moved = np.array([item.work.bytes_read + item.work.bytes_written for item in works])
        is_kernel = np.array([item.launch.what in ("kernel", "library") for item in works])
        lacks = np.array([not item.work.has_model for item in works]) & is_kernel
        on_tensor_cores = lacks & np.array([item.launch.tensor_cores for item in works])
        for step in steps.measured:
            rows = slice(int(own_steps.rows[step]), int(own_steps.rows[step + 1]))
            of_work = one.rank_class.kernel[rows]
            chosen = of_work >= 0
            durations = (one.end_ns[rows, 0] - one.start_ns[rows, 0])[chosen]
            ranks = len(one.ranks)
            times = np.bincount(of_work[chosen], minlength=len(works)) * ranks
            busy = np.bincount(of_work[chosen], weights=durations, minlength=len(works)) * ranks
            all_launches += float(times[is_kernel].sum())
            all_touched += float((times * moved)[is_kernel].sum())
            all_ns += float(busy.sum())
            launches += float(times[lacks].sum())
            touched += float((times * moved)[lacks].sum())
            ns += float(busy[lacks].sum())
            matrix += float((times * moved)[on_tensor_cores].sum())
            for at in np.flatnonzero(lacks & (times > 0)).tolist():
                key = (works[at].launch.function, _place(works[at]), int(moved[at]))
                by_kernel[key] = by_kernel.get(key, 0.0) + float(times[at] * moved[at])
    count = max(len(steps.measured), 1)
    (name, place, size), _ = min(by_kernel.items(), key=lambda item: (-item[1], item[0]), default=(("", "", 0), 0.0))
    return WithoutModel(
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
