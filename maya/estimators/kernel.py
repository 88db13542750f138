"""`Kernel`, the input of the estimator: what a kernel or library call computes and moves. `Estimate`, its result.

features/ makes kernels from the records of a trace, ops.py from options of the command line. The estimator evaluates
kernels of one class as columns of numpy arrays: a job has hundreds of distinct kernels, a search over configurations
hundreds of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class KernelClass(str, Enum):
    """Classes of kernels; each class has one model."""

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

    __hash__ = str.__hash__  # Enum's hash is slow Python code, and lookups come by the hundred thousand


class ClassTraits(NamedTuple):
    """All that the models and the results need to know about a kernel class; the defaults are a memory-bound class."""

    time_class: str = "memory_bound"  # the `TimeClass` that a step's time is shown under
    uses_tensor_cores: bool = False  # counts for MFU, and its bound is the peak of the tensor cores
    # For memory-bound classes: the family whose curve stands in for an unmeasured one, and how many times slower the
    # class is assumed to be.
    similar_family: tuple[str, float] = ("elementwise/strided", 1.3)
    curve_axis: str = "bytes"  # the size that its efficiency depends on most, see `models/curves.py`


CLASS_TRAITS: dict[KernelClass, ClassTraits] = {
    KernelClass.GEMM: ClassTraits("gemm", uses_tensor_cores=True),
    KernelClass.ATTENTION: ClassTraits("attention", uses_tensor_cores=True),
    KernelClass.CONVOLUTION: ClassTraits("convolution", uses_tensor_cores=True),
    KernelClass.ELEMENTWISE: ClassTraits(),
    KernelClass.REDUCTION: ClassTraits(similar_family=("reduction/outer", 1.0)),
    # A norm reads a row twice. The second read hits the SM's cache only if all rows in flight on the SM fit into it.
    KernelClass.NORM: ClassTraits(similar_family=("norm/layer_norm_forward", 1.0), curve_axis="residence"),
    # The number of columns decides how many elements each thread of a block has.
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
    ROOFLINE = "roofline"  # a bound of this device, with the efficiency of similar devices or families
    DEFAULT = "default"  # only the launch is known


@dataclass(frozen=True)
class Kernel:
    """One kernel or library call. `shape` has the dimensions that the model of its class uses: {"m": 4096, ...}."""

    kernel_class: KernelClass
    dtype: str  # compute dtype: "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8", ...
    flops: float  # multiplications and additions
    bytes_read: float  # each input once
    bytes_written: float
    shape: dict[str, float] = field(default_factory=dict)
    variant: str = ""  # the implementation: "flash_backward", "layer_norm", "TN", ...

    @property
    def has_model(self) -> bool:
        """False if its computation or its size is unknown; its time is then a lower bound from bytes at best."""
        return self.kernel_class is not KernelClass.UNKNOWN and not self.variant.endswith("_guessed")


class Estimate(NamedTuple):  # a tuple, because it is made by the hundred thousand and is five times faster to make
    """A duration on one device."""

    ns: int
    origin: Origin
    spread: float  # expected relative standard deviation: 0.05 is 5 %
    note: str = ""  # e.g. from which other device an efficiency was taken
