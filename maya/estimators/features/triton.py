"""Triton kernels -> `Kernel`: Inductor's by their generated source, others by the bytes behind their pointers.

Inductor's names contain the template (poi: elementwise, red: reduction over a long axis, per: over one that fits a
block, tem: a template such as a GEMM) and the fused ops. With the generated source (`inductor.py`), sizes and operands
are exact. Without it, the bytes come from the pointers of the launch, or else (a profile of a real run) from the grid:
Inductor's heuristics give a block 1024 elements for four warps, 512 for eight when a pointwise kernel is large, down to
128 when it is small.
"""

from __future__ import annotations

import dataclasses
import re

from maya.estimators.features.inductor import KernelMetadata
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.templates import template_kernel
from maya.estimators.features.tensors import itemsize
from maya.estimators.kernel import Kernel, KernelClass

_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|for|mm|split_scan)_?(?:fused_)?(.*?)_?\d*$")
_LOOPS = {"poi": "pointwise", "red": "reduction", "per": "persistent_reduction"}
_SMALL_GRID = 128  # in smaller grids, blocks take fewer elements
_ROW = 1024  # assumed elements of a row of unknown length
_TABLE_FACTOR = 2  # of an embedding, buffers of more than a part of the table are state of its optimizer


def triton(launch: KernelLaunch, metadata: KernelMetadata | None = None) -> Kernel | None:
    """The `Kernel` of a launch whose name begins with triton_; None if only its pointers or its grid are known."""
    match = _INDUCTOR.match(launch.function)
    loop = _LOOPS.get(match[1]) if match else None
    if metadata is not None and metadata.template is not None:
        return template_kernel(metadata.template, launch)
    if metadata is not None:
        return _exact(launch, loop or "pointwise", metadata)
    return _guessed(launch, loop, match[2].split("_")) if match and loop and not launch.pointers else None


def from_pointers(launch: KernelLaunch) -> Kernel | None:
    """A kernel with known arguments and no model: assume one pass over the memory behind its pointers.

    That is a lower bound if the kernel touches all of its tensors: its FLOPs and repeated reads are unknown. None: the
    bytes behind its pointers are unknown.
    """
    touched = float(sum(launch.pointers))
    if not touched:
        return None
    largest = float(max(launch.pointers))
    shape = {"elements": largest, "blocks": float(launch.blocks), "operands": float(sum(map(bool, launch.pointers)))}
    variant = "matrix_from_pointers" if launch.tensor_cores else "from_pointers"
    return Kernel(KernelClass.UNKNOWN, "uint8", 0.0, touched - largest, largest, shape, variant)


def gathering(launch: KernelLaunch) -> Kernel | None:
    """As `from_pointers`, for a compiled kernel, whose name and op say more.

    A look-up in an embedding table touches the rows that its indices name, not the table, and so does its backward with
    the optimizer's state. If the op has a list of indices and a list of offsets into it, each segment gives a row of
    the result, or takes one of the gradient: the largest buffer but tables, once for each index of a segment.
    """
    kernel = from_pointers(launch)
    if kernel is None or "embedding" not in launch.function or len(launch.pointers) < 2:
        return kernel
    lists = [item for item in launch.tensors if len(item.shape) == 1 and item.dtype in ("int32", "int64")]
    indices, segments = [*sorted((item.elements for item in lists), reverse=True), 0, 0][:2]
    if segments < 2:
        return kernel
    tables = max(launch.pointers)
    result = max((size for size in launch.pointers if size < tables / _TABLE_FACTOR), default=tables)
    rows = result * indices / (segments - 1)
    touched = sum(min(float(size), rows) for size in launch.pointers)
    written = min(float(tables), rows)
    return dataclasses.replace(kernel, bytes_read=touched - written, bytes_written=written)


def _guessed(launch: KernelLaunch, loop: str, fused: list[str]) -> Kernel:
    operands = 2 + sum(word in ("add", "mul", "sub", "div", "where", "backward", "cat") for word in fused)
    if loop == "pointwise":
        per_block = _SMALL_GRID * 2 if launch.blocks < _SMALL_GRID else (1024 if launch.threads <= 128 else 512)
        elements = float(launch.blocks * per_block)
        columns = 1.0
    else:
        columns = float(_ROW if launch.threads <= 128 else launch.threads * 8)
        elements = launch.blocks * columns
    size = 2  # compiled programs mostly use mixed precision
    shape = {"elements": elements, "columns": columns, "operands": float(operands)}
    moved = elements * size
    return Kernel(KernelClass.TRITON, "bf16", elements * 4, moved * (operands - 1), moved, shape, f"{loop}_guessed")


def _exact(launch: KernelLaunch, loop: str, metadata: KernelMetadata) -> Kernel:
    read, written = metadata.traffic()
    elements, columns = metadata.elements, metadata.columns
    sizes = metadata.bytes_behind(launch) if metadata.dynamic else {}
    if sizes:
        # The source does not contain its sizes: assume one pass over its tensors.
        written = float(sum(size for name, size in sizes.items() if "out" in name))
        read = float(sum(size for name, size in sizes.items() if not name.startswith("out")))
        elements = max(size / itemsize(metadata.pointers[name]) for name, size in sizes.items())
        columns = min(columns, elements)
    shape = {"elements": elements, "columns": columns, "operands": float(len(metadata.pointers))}
    return Kernel(KernelClass.TRITON, metadata.dtype, elements * 4, read, written, shape, loop)
