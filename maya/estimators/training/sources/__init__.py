"""Public measurements of kernels, each in its publisher's own form, read as works and the seconds they took.

    tables            CSV (also .gz) and Parquet files as columns
    aiconfigurator    NVIDIA aiconfigurator: matrix products, attention forward
    cudnn_frontend    NVIDIA cuDNN frontend: attention forward and backward
    simumax           SimuMax: matrix products by layout, attention forward and backward
    neusight_gemm     NeuSight: fp32 matrix products, also batched
    deepbench_gemm    DeepBench: fp16 matrix products on V100

The files themselves are not part of Maya; what was learned from them is, in packs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.kernel import Kernel


@dataclass(frozen=True)
class Source:
    """Where measurements come from."""

    name: str
    licence: str
    date: str  # of the state that was read


@dataclass
class Measurements:
    """Works of one kind, dtype and variant, as measured on one device."""

    source: Source
    grouped_by: str  # what is held out together, in words
    kernels: list[Kernel] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def add(self, kernel: Kernel, seconds: float, group: str) -> None:
        if seconds > 0:
            self.kernels.append(kernel)
            self.seconds.append(seconds)
            self.groups.append(group)

    def columns(self) -> tuple[Batch, Floats]:
        """The works as one batch, and their times."""
        together = [batch for _, batch in batches(self.kernels)]
        if len(together) != 1:
            kinds = sorted({(kernel.kind.value, kernel.dtype, kernel.variant) for kernel in self.kernels})
            raise ValueError(f"measurements of one kind, dtype and variant expected, found {kinds or 'none'}")
        return together[0], np.array(self.seconds)
