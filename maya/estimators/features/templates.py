"""Kernels that Inductor makes from templates: GEMMs, grouped GEMMs, convolutions, FlexAttention -> `Kernel`.

In: the generated source, which assigns sizes to names of the template (`M = 8192`), and the launch: its grid and the
bytes behind its pointers, which determine dynamic sizes (`M = ks0`). Out: a kernel of the same class as the library's
for the same op, with its own variant; None if the template is unknown or its sizes are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.library import convolution_kernel
from maya.estimators.features.mask import visible
from maya.estimators.features.tensors import itemsize
from maya.estimators.kernel import Kernel
from maya.estimators.models.attention import attention_kernel
from maya.estimators.models.gemm import TRITON, gemm_kernel

_DECORATOR = "@triton_heuristics.template("
_CONSTANT = re.compile(r"^\s+([A-Za-z]\w*)\s*(?::\s*tl\.constexpr)?\s*=\s*(-?\d+|True|False)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Template:
    """One generated kernel."""

    source: str
    constants: Mapping[str, int]  # names that the source assigns a number to, at their first assignment
    parameters: Mapping[str, str]  # type by argument, in order: "*bf16", "i32"

    @property
    def pointers(self) -> dict[str, str]:
        """Dtype by argument, of pointer arguments."""
        return pointers_among(self.parameters)

    def has(self, *names: str) -> bool:
        """Whether the source defines all of the names."""
        return all(re.search(rf"^\s+{name}\b[^=\n]*=", self.source, re.MULTILINE) for name in names)


_TRITON_TYPES = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "i1": "bool"}
_TRITON_TYPES |= {"fp8e4nv": "fp8", "fp8e5": "fp8"}


def pointers_among(parameters: Mapping[str, str]) -> dict[str, str]:
    """Dtype by argument, of a kernel's pointer parameters."""
    kinds = ((name, kind.removeprefix("*")) for name, kind in parameters.items() if kind.startswith("*"))
    return {name: _TRITON_TYPES.get(kind, kind) for name, kind in kinds}


def bytes_behind(parameters: Mapping[str, str], launch: KernelLaunch) -> dict[str, int]:
    """Bytes of the tensor behind each pointer argument, by name, where the launch has them."""
    names = [name for name, kind in parameters.items() if kind != "constexpr"]
    found = zip(names, launch.pointers, strict=False)  # a launch has no bytes for parameters after its last pointer
    return {name: size for name, size in found if size > 0 and parameters[name].startswith("*")}


def parse_template(source: str, parameters: Mapping[str, str]) -> Template | None:
    """Parse a generated source; None if it does not come from a template."""
    if _DECORATOR not in source:
        return None
    constants: dict[str, int] = {}
    for name, text in _CONSTANT.findall(source):
        constants.setdefault(name, int(text == "True") if text in ("True", "False") else int(text))
    return Template(source, constants, parameters)


def template_kernel(template: Template, launch: KernelLaunch) -> Kernel | None:
    """The `Kernel` of a launch of a template."""
    if template.has("Q_LEN", "KV_LEN", "QK_HEAD_DIM"):
        return _attention(template, launch)
    if template.has("IN_C", "OUT_C", "KERNEL_H"):
        return _convolution(template)
    if template.has("G", "M", "N", "K"):
        return _grouped(template, launch)
    if template.has("M", "N"):
        return _gemm(template, launch)
    return None


def _elements(template: Template, launch: KernelLaunch) -> dict[str, float]:
    """Elements of the tensor behind each pointer, by argument, where the launch has its bytes."""
    dtypes = template.pointers
    return {name: size / itemsize(dtypes[name]) for name, size in bytes_behind(template.parameters, launch).items()}


def _dtype(template: Template, *names: str) -> str:
    found = (template.pointers[name] for name in names if name in template.pointers)
    return next(found, next(iter(template.pointers.values()), "bf16"))


# ---- GEMMs ----


def _gemm(template: Template, launch: KernelLaunch) -> Kernel | None:
    sizes = template.constants
    batch = sizes.get("BATCH") or (launch.grid[1] * launch.grid[2] if template.has("BATCH") else 1)
    if "K" in sizes or not template.has("K1"):
        found = _gemm_sizes(template, launch, batch)
    else:  # a @ b + c @ d
        found = (sizes.get("M", 0), sizes.get("N", 0), 2 * sizes.get("K1", 0))
    return None if found is None or 0 in found else _tiled(template, launch, found, batch)


def _gemm_sizes(template: Template, launch: KernelLaunch, batch: int) -> tuple[int, int, int] | None:
    """m, n and k; dynamic ones follow from the sizes of both operands and of the result."""
    known = template.constants
    if {"M", "N", "K"} <= known.keys():
        return known["M"], known["N"], known["K"]
    elements = _elements(template, launch)
    a, b = elements.get("arg_A", 0.0), elements.get("arg_B", 0.0)
    if not a or not b:
        return None
    result = list(elements.values())[-1]
    m = known.get("M") or (a / known["K"] / batch if "K" in known else math.sqrt(a * result / b / batch))
    k = known.get("K") or a / m / batch
    n = known.get("N") or b / k / batch
    return round(m), round(n), round(k)


def _tiled(template: Template, launch: KernelLaunch, sizes: tuple[int, int, int], batch: int) -> Kernel:
    """A tiled GEMM: each block computes one tile of the result."""
    m, n, k = sizes
    dtype = _dtype(template, "arg_A", "arg_a_ptr")
    if dtype == "fp32" and template.constants.get("ALLOW_TF32"):
        dtype = "tf32"
    result = list(template.pointers.values())[-1] if template.pointers else dtype
    layout = _layout(template.constants)
    kernel = gemm_kernel(m, n, k, batch=batch, dtype=dtype, layout=f"{layout}{TRITON}", out_dtype=result)
    tile = {name: template.constants.get(key, 128) for name, key in (("tile_m", "BLOCK_M"), ("tile_n", "BLOCK_N"))}
    # Ops fused into the GEMM read and write further tensors.
    more = max(float(sum(launch.pointers)) - kernel.bytes_read - kernel.bytes_written, 0.0)
    return replace(kernel, bytes_read=kernel.bytes_read + more, shape={**kernel.shape, **tile})


def _layout(constants: Mapping[str, int]) -> str:
    """cuBLAS' name of the layout; cuBLAS sees the operands of a row-major GEMM transposed and in reverse order."""
    b_by_columns = constants.get("stride_bk", constants.get("B_STRIDE_K", 0)) == 1
    a_by_columns = constants.get("stride_am", constants.get("A_STRIDE_M", 0)) == 1
    return ("T" if b_by_columns else "N") + ("T" if a_by_columns else "N")


def _grouped(template: Template, launch: KernelLaunch) -> Kernel | None:
    """GEMMs of different sizes: only their sum is known, so they are assumed to be equal.

    Groups divide the rows of a (M), the columns of b (N), the summed dimension (K), or none of them.
    """
    sizes = template.constants
    groups, m, n, k = (sizes.get(name, 0) for name in ("G", "M", "N", "K"))
    a_is_2d, b_is_2d = (bool(sizes.get(name)) for name in ("A_IS_2D", "B_IS_2D"))
    if 0 in (groups, n, k) or (m == 0 and not a_is_2d):
        return None
    if m == 0:  # the number of tokens is an argument
        m = round(_elements(template, launch).get("arg_a_ptr", 0.0) / k)
    if a_is_2d and b_is_2d:
        k = -(-k // groups)
    elif a_is_2d:
        m = -(-m // groups)
    elif b_is_2d:
        n = -(-n // groups)
    return _tiled(template, launch, (m, n, k), groups) if m else None


# ---- convolutions ----


def _convolution(template: Template) -> Kernel | None:
    sizes = template.constants
    spatial = [axis for axis in "DHW" if f"IN_{axis}" in sizes]
    names = ["BATCH", "IN_C", "OUT_C", *(f"{what}_{axis}" for axis in spatial for what in ("IN", "OUT", "KERNEL"))]
    if not all(sizes.get(name) for name in names):
        return None
    groups = sizes.get("GROUPS", 1)
    dtype = _dtype(template, "arg_X")
    kernel = convolution_kernel(
        dtype,
        [sizes["BATCH"], sizes["IN_C"], *(sizes[f"IN_{axis}"] for axis in spatial)],
        [sizes["OUT_C"], sizes["IN_C"] // groups, *(sizes[f"KERNEL_{axis}"] for axis in spatial)],
        [sizes["BATCH"], sizes["OUT_C"], *(sizes[f"OUT_{axis}"] for axis in spatial)],
        stride=[sizes.get(f"STRIDE_{axis}", 1) for axis in spatial],
        groups=groups,
        variant=f"forward{TRITON}",
        tf32=bool(sizes.get("ALLOW_TF32")),
        channels_last=sizes.get("stride_xc") == 1,
    )
    return kernel


# ---- FlexAttention ----


def _attention(template: Template, launch: KernelLaunch) -> Kernel | None:
    sizes = template.constants
    backward = "arg_DQ" in template.pointers
    head_dim = sizes.get("QK_HEAD_DIM", 0)
    value_dim = sizes.get("V_HEAD_DIM", head_dim)
    if not head_dim or not value_dim:
        return None
    shared = sizes.get("GQA_SHARED_HEADS", 1)
    batch, heads = _batch_and_heads(template, launch)
    elements = _elements(template, launch)
    queries = sizes.get("Q_LEN") or round(elements.get("arg_Q", 0.0) / (batch * heads * head_dim))
    kv_heads = max(heads // shared, 1)
    kv_batch = sizes.get("ZKV") or batch
    stored = elements.get("arg_K", 0.0) / head_dim or elements.get("arg_V", 0.0) / value_dim  # or one for both
    keys = sizes.get("KV_LEN") or round(stored / (kv_batch * kv_heads))
    if not queries or not keys:
        return None
    query_block, key_block = (sizes.get(f"SPARSE_{side}_BLOCK_SIZE", 128) for side in ("Q", "KV"))
    mask = visible(template.source, queries, keys, min(query_block, queries), min(key_block, keys))
    return attention_kernel(
        batch,
        heads,
        queries,
        head_dim,
        keys=keys,
        kv_heads=kv_heads,
        value_dim=value_dim,
        dtype=_dtype(template, "arg_Q"),
        implementation="flex" if mask.exact else "flex_dense",
        backward=backward,
        pairs=float(batch) * queries * keys * mask.share,
    )


def _batch_and_heads(template: Template, launch: KernelLaunch) -> tuple[int, int]:
    """Batch size and heads of the queries; if they are dynamic, the grid has one block per sequence and (key/value)
    head."""
    sizes = template.constants
    shared = sizes.get("GQA_SHARED_HEADS", 1)
    heads = sizes.get("HQ") or sizes.get("HKV", 0) * shared
    batch = sizes.get("ZQ") or sizes.get("Z", 0)
    if batch and heads:
        return batch, heads
    of_grid = launch.grid[1] * launch.grid[2]
    if template.has("HKV"):  # backward and decoding: a block for each head of keys and values
        of_grid *= shared
    if heads:
        return max(of_grid // heads, 1), heads
    return (batch, max(of_grid // batch, 1)) if batch else (1, of_grid)
