"""Public measurements of kernels, each in its publisher's format, read as kernels and their seconds.

    tables                CSV (also .gz) and Parquet files as columns
    aiconfigurator        NVIDIA aiconfigurator: GEMMs, attention forward
    cudnn_frontend        NVIDIA cuDNN frontend: attention forward and backward
    simumax               SimuMax: GEMMs by layout, attention forward and backward
    neusight_gemm         NeuSight: fp32 GEMMs, also batched
    deepbench_gemm        DeepBench: fp16 GEMMs on V100
    convolutions          NeuSight: fp32 convolutions
    deepbench             DeepBench: convolutions and recurrent layers on V100
    memory_bound_kernels  norms, softmax, elementwise kernels from several publishers

The files themselves are not part of Maya; the models trained on them are, in packs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.kernel import Kernel


@dataclass(frozen=True)
class Source:
    """The publisher of measurements."""

    name: str
    licence: str
    date: str  # of the version that was read


@dataclass
class Measurements:
    """Measured kernels of one class, dtype and variant on one device."""

    source: Source
    grouped_by: str  # the unit of holding out, in words
    kernels: list[Kernel] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def add(self, kernel: Kernel, seconds: float, group: str) -> None:
        if seconds > 0:
            self.kernels.append(kernel)
            self.seconds.append(seconds)
            self.groups.append(group)

    def columns(self) -> tuple[Batch, Floats]:
        """The kernels as one batch, and their times."""
        found = [batch for _, batch in batches(self.kernels)]
        if len(found) != 1:
            names = sorted({(kernel.kernel_class.value, kernel.dtype, kernel.variant) for kernel in self.kernels})
            raise ValueError(f"measurements of one class, dtype and variant expected, found {names or 'none'}")
        return found[0], np.array(self.seconds)
