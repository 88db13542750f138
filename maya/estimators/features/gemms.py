"""GEMMs and convolutions known by their kernels, not by a library call: from the op's tensors.

In: a `KernelLaunch` in a profile of a real run (which shows cuBLAS' kernels), or of a kernel of torch itself. Out: the
same `Kernel` that the library call would give. Helper kernels (split-k reductions, layout changes around a convolution)
are kernels of their own.
"""

from __future__ import annotations

import math

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.library import convolution_kernel, gemm_from_arguments
from maya.estimators.features.tensors import Tensor, itemsize
from maya.estimators.kernel import Kernel, KernelClass

# The positions of the two matrices among an op's inputs.
_OPERANDS = {"addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2), "addmv": (1, 2), "_addmm_activation": (1, 2)}


def gemm_from_launch(launch: KernelLaunch) -> Kernel | None:
    """A kernel of a GEMM, or the reduction of a split-k GEMM."""
    if "onvolution" in launch.op:
        return convolution_from_launch(launch)
    first, second = _OPERANDS.get(launch.op_name.rstrip("_"), (0, 1))
    a, b = launch.tensor(first), launch.tensor(second)
    if a is None or b is None or not a.shape or not b.shape:
        return None
    if "splitK" in launch.function or "splitk" in launch.function:
        # Its time is part of the measured time of the GEMM.
        return Kernel(KernelClass.ELEMENTWISE, a.dtype, 0.0, 0.0, 0.0, {}, "part_of_product")
    if launch.op_name == "linear":
        b = Tensor(tuple(reversed(b.shape)), b.dtype, tuple(reversed(b.strides)))
    m = a.shape[-2] if len(a.shape) > 1 else 1
    k = a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = math.prod(a.shape[:-2]) if len(a.shape) > 2 else 1
    if len(b.shape) <= 2 and batch > 1:  # a batch of rows times one matrix is one GEMM
        m, batch = m * batch, 1
    c_type = a.dtype if not a.dtype.startswith("fp8") else "bf16"
    tf32 = "tf32" in launch.name
    layout = {"transa": _transposed(b, n), "transb": _transposed(a, k)}
    types = {"a_type": b.dtype, "b_type": a.dtype, "c_type": c_type, "compute": "tf32" if tf32 else "fp32"}
    return gemm_from_arguments({"m": n, "n": m, "k": k, "batch": batch, **layout, **types})


def _transposed(tensor: Tensor, columns: int) -> str:
    """Whether cuBLAS sees a transposed matrix; it reads a row-major matrix as its transpose."""
    return "N" if tensor.rows_are_contiguous or columns == 1 else "T"


def convolution_from_launch(launch: KernelLaunch) -> Kernel | None:
    """A kernel of a convolution; a layout change makes one pass over the input or the result."""
    x, w = launch.tensor(0), launch.tensor(1)
    backward = "ackward" in launch.op
    if backward:
        x, w = launch.tensor(1), launch.tensor(2)
    if x is None or w is None or len(x.shape) < 3:
        return None
    name = launch.function
    if "nchwToNhwc" in name or "nhwcToNchw" in name or "TensorTransform" in name:
        return _layout_change(launch, x, w)
    numbers = [value for value in launch.inputs if isinstance(value, list) and value and isinstance(value[0], int)]
    dims = len(x.shape) - 2
    window = list(w.shape[2:])
    # aten::convolution(x, w, b, stride, padding, ...), aten::cudnn_convolution(x, w, padding, stride, ...)
    cudnn_order = launch.op_name.startswith("cudnn")
    stride = _filled(numbers[1] if cudnn_order and len(numbers) > 1 else numbers[0] if numbers else [1], dims)
    padding = _filled(numbers[0] if cudnn_order and numbers else numbers[1] if len(numbers) > 1 else [0], dims)
    result = [
        (size + 2 * pad - side) // max(step, 1) + 1
        for size, pad, side, step in zip(x.shape[2:], padding, window, stride, strict=False)
    ]
    y = [x.shape[0], w.shape[0], *result]
    groups = max(x.shape[1] // max(w.shape[1], 1), 1)
    direction = "wgrad" if "wgrad" in name else "dgrad" if "dgrad" in name else "forward"
    tf32 = "tf32" in launch.name or "s1688" in name
    return convolution_kernel(
        x.dtype, list(x.shape), list(w.shape), y, stride=stride, groups=groups, variant=direction, tf32=tf32
    )


def _filled(values: list[int], dims: int) -> list[int]:
    return list(values) if len(values) == dims else [values[0]] * dims


def _layout_change(launch: KernelLaunch, x: Tensor, w: Tensor) -> Kernel:
    """A layout change of the input or the filter, whichever fits the grid."""
    capacity = launch.blocks * launch.threads * 16
    chosen = x if x.elements <= capacity and launch.blocks * launch.threads > w.elements else w
    elements = float(min(chosen.elements, capacity))
    moved = elements * itemsize(chosen.dtype)
    return Kernel(
        KernelClass.COPY, chosen.dtype, 0.0, moved, moved, {"elements": elements, "operands": 2.0}, "transposed"
    )
