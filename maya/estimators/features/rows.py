"""Kernels over rows: reductions, norms, softmax, cross-entropy.

In: a `KernelLaunch`. Out: a `Kernel` with `rows` and `columns`, and the reads and writes of this launch alone: the
backward of a norm is one kernel for the input's gradient (reads gradient and input, writes one tensor) and one for the
parameters' gradients (reads both again).
"""

from __future__ import annotations

import math
import re

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.parts import share
from maya.estimators.features.tensors import Tensor, itemsize
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.models.row_traffic import HAS_MEAN, IN_PASSES


def reduction(launch: KernelLaunch) -> Kernel | None:
    """torch's reduce_kernel: sum, mean, max, norms, argmax, any, ..."""
    if not launch.tensors:
        return None
    source = launch.tensors[0]
    columns, inner = _reduced(launch, source)
    rows = source.elements / columns
    part = share(launch, source.elements, [source.itemsize])
    elements = source.elements * part
    if launch.outputs:
        rows, columns = float(launch.outputs), elements / launch.outputs
    elif inner and rows * part >= 1:
        rows *= part
    else:
        columns *= part
    size = 8 if launch.op_name.startswith("arg") else source.itemsize
    shape = {"rows": rows, "columns": columns}
    variant = "inner" if inner else "outer"
    return Kernel(KernelClass.REDUCTION, source.dtype, elements, source.bytes * part, rows * size, shape, variant)


def _reduced(launch: KernelLaunch, source: Tensor) -> tuple[float, bool]:
    """(elements per result, whether they are contiguous in memory)."""
    dims = _dimensions(launch, len(source.shape))
    if dims is None:
        return float(source.elements), True
    columns = math.prod(source.shape[dim] for dim in dims) or 1
    strides = source.strides if len(source.strides) == len(source.shape) else None
    varying = [d for d in range(len(source.shape)) if source.shape[d] > 1 and (strides is None or strides[d] > 0)]
    if not varying:
        return float(columns), True
    fastest = min(varying, key=lambda d: strides[d]) if strides else varying[-1]
    return float(columns), fastest in dims


def _dimensions(launch: KernelLaunch, rank: int) -> tuple[int, ...] | None:
    """The dimensions that the op reduces; None: all of them."""
    for value in launch.inputs[1:]:
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int) and launch.op_name not in ("linalg_vector_norm", "norm", "std", "var"):
            return (value % rank,) if rank and -rank <= value < rank else None
        if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(sorted({item % rank for item in value})) if value and rank else None
    return None


def layer_norm_forward(launch: KernelLaunch) -> Kernel | None:
    """LayerNorm and RMSNorm: reads the input once, writes the output, and per row a mean and a deviation."""
    source = _first_large(launch)
    if source is None:
        return None
    columns = _normalized(launch, source)
    rows = source.elements / columns
    written = source.elements * source.itemsize + 8 * rows
    kernel = _norm(source, rows, columns, source.bytes, written, "layer_norm_forward")
    if "layer_norm" in launch.op:
        kernel.shape[HAS_MEAN] = 1.0
    return _block_a_row(launch, kernel)


def add_and_norm(launch: KernelLaunch) -> Kernel | None:
    """A residual is added first: two tensors are read, their sum and its norm are written."""
    source = _first_large(launch)
    if source is None:
        return None
    columns = _normalized(launch, source)
    moved = 2.0 * source.elements * source.itemsize
    return _block_a_row(launch, _norm(source, source.elements / columns, columns, moved, moved, "layer_norm_forward"))


def layer_norm_backward_input(launch: KernelLaunch) -> Kernel | None:
    """Reads the gradient and the input, writes the input's gradient."""
    source = _first_large(launch)
    if source is None:
        return None
    columns = _normalized(launch, source)
    rows = source.elements / columns
    moved = source.elements * source.itemsize
    return _norm(source, rows, columns, 2 * moved + 8 * rows, moved, "layer_norm_backward")


def layer_norm_backward_parameters(launch: KernelLaunch) -> Kernel | None:
    """Reads the gradient and the input again, writes the gradients of scale and bias."""
    source = _first_large(launch)
    if source is None:
        return None
    columns = _normalized(launch, source)
    rows = source.elements / columns
    read = 2 * source.elements * source.itemsize + 8 * rows
    return _norm(source, rows, columns, read, 8 * columns, "layer_norm_backward_parameters")


def batch_norm(launch: KernelLaunch) -> Kernel | None:
    """Kernels of torch's own batch and group norms, by the tensors they access."""
    source = _first_large(launch)
    if source is None:
        return None
    channels = source.shape[1] if len(source.shape) > 1 else 1
    moved = float(source.elements * source.itemsize)
    name = launch.function.lower()
    backward = "backward" in name or "backward" in launch.op
    reads = 2.0 if backward else 1.0
    writes = 0.0 if any(word in name for word in ("collect", "reduce", "moments", "statistic")) else 1.0
    if "fusedparams" in name or "gammabeta" in name or "internalgradients" in name:
        writes = 0.0
        reads = reads if "internalgradients" in name else 0.0
    variant = "batch_norm_backward" if backward else "batch_norm_forward"
    return _norm(source, channels, source.elements / channels, reads * moved, writes * moved + 8 * channels, variant)


def _norm(source: Tensor, rows: float, columns: float, read: float, written: float, variant: str) -> Kernel:
    shape = {"rows": float(rows), "columns": float(columns)}
    return Kernel(KernelClass.NORM, source.dtype, 8.0 * source.elements, float(read), float(written), shape, variant)


def _block_a_row(launch: KernelLaunch, kernel: Kernel) -> Kernel:
    """Add the threads per block to the shape, if every row has its own block."""
    if launch.blocks >= kernel.shape["rows"]:
        kernel.shape["threads"] = float(launch.threads)
    return kernel


def _first_large(launch: KernelLaunch) -> Tensor | None:
    return launch.tensors[0] if launch.tensors else None


def _normalized(launch: KernelLaunch, source: Tensor) -> float:
    """The product of the normalized shape, which is among the op's inputs as a list of numbers."""
    for value in launch.inputs:
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            return float(math.prod(value))
    return float(source.shape[-1]) if source.shape else 1.0


def softmax(launch: KernelLaunch) -> Kernel | None:
    """Softmax and log-softmax, forward (reads x, writes y) and backward (reads gradient and y, writes one)."""
    source = _first_large(launch)
    if source is None:
        return None
    backward = "ackward" in launch.function or "ackward" in launch.op
    dim = next((v for v in launch.inputs if isinstance(v, int) and not isinstance(v, bool)), -1)
    columns = source.shape[dim] if source.shape and -len(source.shape) <= dim < len(source.shape) else 1
    rows = min(source.elements / columns, _rows_of_warps(launch, columns))
    part = rows * columns / source.elements
    elements = rows * columns
    moved = float(elements * source.itemsize)
    wide = itemsize("fp32") if launch.op_name == "_log_softmax" and True in launch.inputs[2:3] else source.itemsize
    shape = {"rows": rows, "columns": float(columns)}
    family = "log_softmax" if "log_softmax" in launch.op or "LogSoftMax" in launch.name else "softmax"
    variant = f"{family}_{'backward' if backward else 'forward'}"
    # Kernels with one block per row that keep it neither in registers nor in shared memory.
    if re.search(r"cunn_SoftMax(Forward|Backward)(?!Smem|Reg)", launch.name):
        variant += IN_PASSES
    read = 2 * moved if backward else source.bytes * part
    written = float(elements * wide)
    return _block_a_row(
        launch, Kernel(KernelClass.SOFTMAX, source.dtype, 8.0 * elements, read, written, shape, variant)
    )


def _rows_of_warps(launch: KernelLaunch, columns: int) -> float:
    """The rows of a launch, from its grid, if each warp has one row, or two of up to 128 columns: torch launches this
    kernel for 2**30 elements at a time. The grids of other kernels do not determine their rows."""
    if not launch.function.startswith("softmax_warp"):
        return math.inf
    return float(launch.blocks * launch.block[1] * (2 if columns <= 128 else 1))


def cross_entropy(launch: KernelLaunch) -> Kernel | None:
    """Negative log likelihood: reads one element per row (a sector of 32 bytes), writes a sum or one value per row."""
    tensors = launch.tensors
    logits = next((tensor for tensor in tensors if len(tensor.shape) >= 2), None)
    rows = max((tensor.elements for tensor in tensors if tensor.dtype == "int64"), default=0)
    if not rows and logits is not None:
        rows = logits.shape[0]
    if not rows:
        return None
    dtype = logits.dtype if logits is not None else "fp32"
    backward = "ackward" in launch.function or "ackward" in launch.op
    touched = 32.0 * rows
    read, written = (8.0 * rows, touched) if backward else (8.0 * rows + touched, 4.0)
    # A block processes its rows in turns, one row per thread and turn: the number of turns decides the time.
    shape = {"rows": float(rows), "turns": float(-(-rows // (launch.blocks * launch.threads)))}
    return Kernel(
        KernelClass.CROSS_ENTROPY, dtype, float(rows), read, written, shape, "backward" if backward else "forward"
    )
