"""Elementwise kernels, with one pass over their tensors: arithmetic, casts, copies, fills, random numbers.

In: a `KernelLaunch` of one of torch's elementwise kernels. Out: a `Kernel` that reads every operand once and writes the
result.

An op is usually one such kernel; where it is several (parts.py), each has its share of the op's bytes.
"""

from __future__ import annotations

import math
import re

from maya.estimators.features.kernel_names import first_number, pointers
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.parts import itemsizes, share
from maya.estimators.features.tensors import Tensor, broadcast, itemsize
from maya.estimators.kernel import Kernel, KernelClass

_MOST_PER_THREAD = 16  # elements; torch's kernels do 4, 8 or 16
_USUAL_PER_THREAD = 4

_BOOLEAN = re.compile(r"^(eq|ne|lt|le|gt|ge|equal|not_equal|less|greater|logical_\w+|is\w+|signbit|all|any)(_?|_\w+)$")
_WRITES_ONLY = frozenset({"fill_", "zero_", "arange", "ones", "zeros", "full", "empty", "linspace", "eye", "range"})
_EXPENSIVE = re.compile(r"gelu|pow|exp|log|tanh|sigmoid|silu|erf|sin|cos|sqrt|softplus|mish", re.IGNORECASE)
_COPIES = re.compile(r"copy_kernel|CopyFunctor|_copy_")
_FILLS = re.compile(r"FillFunctor")
_STRIDES = re.compile(r"grid_stride_kernel$|^fused_dropout")  # strides beyond its grid, which only fills the device

_FUNCTOR_DTYPE = (
    (re.compile(r"BFloat16|bfloat16"), "bf16"),
    (re.compile(r"c10::Half|4HalfE|__half"), "fp16"),
    (re.compile(r"<double|IdE|Ud"), "fp64"),
)


def elementwise(launch: KernelLaunch) -> Kernel:
    """vectorized_elementwise_kernel, unrolled_elementwise_kernel, elementwise_kernel and similar ones."""
    operands = pointers(launch.name)
    copies = bool(_COPIES.search(launch.name)) or launch.op_name in ("copy_", "clone", "_to_copy", "contiguous")
    read, written, elements, dtype = _operands(launch, operands)
    variant = _variant(launch)
    if _FILLS.search(launch.name):
        return Kernel(KernelClass.MEMSET, dtype, 0.0, 0.0, written, {"elements": elements}, "fill")
    kernel_class = KernelClass.COPY if copies else KernelClass.ELEMENTWISE
    flops = 0.0 if copies else elements * (10.0 if _EXPENSIVE.search(launch.name + launch.op) else 1.0)
    shape = {"elements": elements, "operands": float(operands or 2)}
    return Kernel(kernel_class, dtype, flops, read, written, shape, variant)


def random(launch: KernelLaunch) -> Kernel:
    """Fills with random numbers, and dropout, which also reads its input and writes a mask."""
    read, written, elements, dtype = _operands(launch, None)
    if "dropout" not in launch.function and "dropout" not in launch.op:
        read = 0.0
        written = elements * launch.tensors[0].itemsize if launch.tensors else written
    elif "fused_dropout" in launch.function:
        written += elements
    # Philox takes about 40 integer instructions for four values, plus a logarithm or a cosine.
    return Kernel(KernelClass.RANDOM, dtype, 20.0 * elements, read, written, {"elements": elements}, launch.function)


def _operands(launch: KernelLaunch, operands: int | None) -> tuple[float, float, float, str]:
    """(bytes read, bytes written, elements, dtype)."""
    tensors = launch.tensors
    if not tensors:
        return _from_grid(launch, operands)
    name = launch.op_name
    in_place = name.endswith("_") and not name.startswith("_")
    if name in _WRITES_ONLY or (operands == 1):
        target = tensors[-1] if name == "arange" else tensors[0]
        part = _share(launch, target.elements, [target.itemsize])
        return 0.0, target.bytes * part, target.elements * part, target.dtype
    if name == "copy_" and len(tensors) >= 2:
        target, source = tensors[0], tensors[1]
        part = _share(launch, target.elements, [target.itemsize, source.itemsize])
        read = float(min(source.bytes, target.elements * source.itemsize))
        return read * part, target.elements * target.itemsize * part, target.elements * part, target.dtype
    if in_place:
        target, inputs = tensors[0], tensors
        elements, written, dtype = float(target.elements), float(target.bytes), target.dtype
    else:
        inputs, written, elements, dtype = _out_of_place(tensors, name, operands)
    part = _share(launch, elements, [*itemsizes(inputs, elements), int(written / elements)])
    read = float(sum(min(tensor.bytes, elements * tensor.itemsize) for tensor in inputs))
    if operands is not None and not in_place:
        # Operands that are not inputs of the op, e.g. saved results that a composite op passes on.
        missing = operands - 1 - len(inputs)
        if missing > 0 and launch.op and elements > 1:
            read += missing * elements * itemsize(dtype)
    return read * part, written * part, elements * part, dtype


def _out_of_place(
    tensors: tuple[Tensor, ...], name: str, operands: int | None
) -> tuple[tuple[Tensor, ...], float, float, str]:
    """(inputs, bytes written, elements, dtype) of an op that makes a new tensor, or has its result among its inputs."""
    inputs = tensors
    if operands is not None and operands >= 2 and len(tensors) >= operands:
        inputs = tensors[: operands - 1]  # the last is out=
    shape = broadcast(inputs)
    elements = float(math.prod(shape))
    floating = [tensor for tensor in inputs if tensor.dtype not in ("bool", "int64") and tensor.shape] or list(inputs)
    widest = max(floating, key=lambda tensor: tensor.itemsize)
    size = 1 if _BOOLEAN.match(name) else widest.itemsize
    return inputs, elements * size, elements, widest.dtype


def _share(launch: KernelLaunch, elements: float, sizes: list[int]) -> float:
    """The share of the op's elements in this launch."""
    part = share(launch, elements, sizes)
    most = launch.blocks * launch.threads * _MOST_PER_THREAD
    if launch.elements or elements * part <= most or _STRIDES.search(launch.function):
        return part
    return launch.blocks * launch.threads * (first_number(launch.name) or _USUAL_PER_THREAD) / elements


def _from_grid(launch: KernelLaunch, operands: int | None) -> tuple[float, float, float, str]:
    dtype = next((name for pattern, name in _FUNCTOR_DTYPE if pattern.search(launch.name)), "fp32")
    per_thread = first_number(launch.name) or _USUAL_PER_THREAD
    elements = float(launch.elements or launch.blocks * launch.threads * min(per_thread, _MOST_PER_THREAD))
    size = itemsize(dtype)
    return elements * size * max((operands or 2) - 1, 0), elements * size, elements, dtype


def _variant(launch: KernelLaunch) -> str:
    """The access pattern: vectorized, unrolled, strided or transposed."""
    if launch.function.startswith("vectorized"):
        return "vectorized"
    if launch.function.startswith("unrolled"):
        return "unrolled"
    large = [tensor for tensor in launch.tensors if tensor.elements > 1]
    if all(tensor.rows_are_contiguous for tensor in large):
        return "strided"
    return "transposed"
