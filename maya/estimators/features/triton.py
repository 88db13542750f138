"""Triton kernels, those of Inductor above all -> Work of kind TRITON.

The launch has a name, a grid and a block, and no sizes. Inductor's names tell the template (poi: elementwise, red:
reduction over a long axis, per: over one that fits a block, tem: a template such as a matrix product) and the ops that
were fused; its heuristics tell how many elements a block takes: 1024 for four warps, 512 for eight when a pointwise
kernel is large, down to 128 when it is small. Where the kernel's metadata is known (`inductor.py`), sizes and operands
are exact.
"""

from __future__ import annotations

import re

from maya.estimators.features.inductor import KernelMetadata
from maya.estimators.features.launch import Launch
from maya.estimators.work import Kind, Work

_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|for|mm|split_scan)_?(?:fused_)?(.*?)_?\d*$")
_TEMPLATES = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent_reduction",
    "tem": "template",
    "mm": "template",
}
_SMALL_GRID = 128  # below it, blocks take fewer elements
_ROW = 1024  # elements of a row, where nothing tells


def triton(launch: Launch, metadata: KernelMetadata | None = None) -> Work:
    """The work of a kernel whose name begins with triton_, or that is known to be Triton's."""
    match = _INDUCTOR.match(launch.function)
    template = _TEMPLATES.get(match[1], "pointwise") if match else "user"
    if metadata is not None:
        return _exact(launch, template, metadata)
    fused = match[2].split("_") if match else []
    operands = 2 + sum(word in ("add", "mul", "sub", "div", "where", "backward", "cat") for word in fused)
    if template == "pointwise":
        per_block = _SMALL_GRID * 2 if launch.blocks < _SMALL_GRID else (1024 if launch.threads <= 128 else 512)
        elements = float(launch.blocks * per_block)
        columns = 1.0
    else:
        columns = float(_ROW if launch.threads <= 128 else launch.threads * 8)
        elements = launch.blocks * columns
    size = 2  # mixed precision is the rule for what is compiled
    shape = {"elements": elements, "columns": columns, "operands": float(operands)}
    moved = elements * size
    return Work(Kind.TRITON, "bf16", elements * 4, moved * (operands - 1), moved, shape, f"{template}_guessed")


def _exact(launch: Launch, template: str, metadata: KernelMetadata) -> Work:
    read, written = metadata.traffic()
    columns = metadata.columns
    shape = {"elements": metadata.elements, "columns": columns, "operands": float(len(metadata.pointers))}
    return Work(Kind.TRITON, metadata.dtype, metadata.elements * 4, read, written, shape, template)
