"""What a kernel or a library call has to do, and what is said about how long that takes.

In: one record of a trace with its signature and its op (features/), or a question from the command line. Out of the
estimators: an `Estimate` for each `Kernel` on one device. Works of one kind are evaluated together, as columns of numpy
arrays: a job has hundreds of different ones, a search over configurations hundreds of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class KernelClass(str, Enum):
    """Classes of work that are estimated alike."""

    GEMM = "gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORM = "norm"
    SOFTMAX = "softmax"
    CROSS_ENTROPY = "cross_entropy"
    EMBEDDING = "embedding"
    INDEX = "index"  # gather, scatter, index_select, masked_fill, ...
    SORT = "sort"
    RANDOM = "random"
    OPTIMIZER = "optimizer"
    COPY = "copy"  # on the device: copy, cast, transpose, cat, split
    TRANSFER = "transfer"  # between host and device, or devices
    MEMSET = "memset"
    RNN = "rnn"
    FFT = "fft"
    LINEAR_ALGEBRA = "linear_algebra"
    TRITON = "triton"
    UNKNOWN = "unknown"

    __hash__ = str.__hash__  # that of Enum is Python code, and works are looked up by the hundred thousand


class Origin(str, Enum):
    """Where a duration comes from, from the best to the worst."""

    MEASURED = "measured"  # this very shape was measured on this device
    MODEL = "model"  # a model trained on measurements of this device
    ROOFLINE = "roofline"  # a bound of this device, with the efficiency of its nearest relatives
    DEFAULT = "default"  # nothing is known about the work but that it was launched


@dataclass(frozen=True)
class Kernel:
    """What has to be done. `shape` has what the kind's estimator looks at, by name: {"m": 4096, ...}."""

    kind: KernelClass
    dtype: str  # of the computation: "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8", ...
    flops: float  # multiplications and additions
    bytes_read: float  # each input once
    bytes_written: float
    shape: dict[str, float] = field(default_factory=dict)
    variant: str = ""  # what tells implementations apart: "flash_backward", "layer_norm", "TN", ...

    @property
    def has_model(self) -> bool:
        """False: what it computes is not known, or how much; its time is from bytes at best, a lower bound."""
        return self.kind is not KernelClass.UNKNOWN and not self.variant.endswith("_guessed")


class Estimate(NamedTuple):  # made by the hundred thousand, and a tuple is made in a fifth of the time
    """A duration on one device."""

    ns: int
    origin: Origin
    spread: float  # relative standard deviation that is to be expected: 0.05 is 5 %
    note: str = ""  # e.g. from which other device an efficiency was taken
