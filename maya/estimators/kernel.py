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


class ClassTraits(NamedTuple):
    """All that the models and the results need to know about a kernel class; the defaults are a memory-bound class."""

    time_class: str = "memory_bound"  # the `TimeClass` that a step's time is shown under
    uses_tensor_cores: bool = False  # counts for MFU, and its bound is the peak of the tensor cores
    # Of a memory-bound class: the family whose curve stands in for one that was not measured, and how many times
    # slower than that the class is taken to be.
    similar_family: tuple[str, float] = ("elementwise/strided", 1.3)
    curve_axis: str = "bytes"  # what its efficiency depends on most, see `models/curves.py`


CLASS_TRAITS: dict[KernelClass, ClassTraits] = {
    KernelClass.GEMM: ClassTraits("gemm", uses_tensor_cores=True),
    KernelClass.ATTENTION: ClassTraits("attention", uses_tensor_cores=True),
    KernelClass.CONVOLUTION: ClassTraits("convolution", uses_tensor_cores=True),
    KernelClass.ELEMENTWISE: ClassTraits(),
    KernelClass.REDUCTION: ClassTraits(similar_family=("reduction/outer", 1.0)),
    # A norm goes twice through a row, and the second time the row is near only as long as the rows that an SM works on
    # side by side fit there.
    KernelClass.NORM: ClassTraits(similar_family=("norm/layer_norm_forward", 1.0), curve_axis="residence"),
    # A block's threads have more or fewer of the columns each.
    KernelClass.SOFTMAX: ClassTraits(similar_family=("softmax/softmax_forward", 1.0), curve_axis="columns"),
    KernelClass.CROSS_ENTROPY: ClassTraits(),
    KernelClass.EMBEDDING: ClassTraits(),
    KernelClass.INDEX: ClassTraits(),
    KernelClass.SORT: ClassTraits(similar_family=("elementwise/strided", 1.5)),
    KernelClass.RANDOM: ClassTraits(similar_family=("elementwise/vectorized", 1.2)),
    KernelClass.OPTIMIZER: ClassTraits(similar_family=("elementwise/vectorized", 1.15)),
    KernelClass.COPY: ClassTraits(),
    KernelClass.TRANSFER: ClassTraits("other"),
    KernelClass.MEMSET: ClassTraits(similar_family=("elementwise/vectorized", 1.0)),
    KernelClass.RNN: ClassTraits("other", uses_tensor_cores=True),
    KernelClass.FFT: ClassTraits("other"),
    KernelClass.LINEAR_ALGEBRA: ClassTraits("other"),
    KernelClass.TRITON: ClassTraits(similar_family=("elementwise/vectorized", 1.2)),
    KernelClass.UNKNOWN: ClassTraits(similar_family=("elementwise/strided", 1.5)),
}


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
