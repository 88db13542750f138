"""An op and its dimensions -> the kernels that torch launches for it, for `maya estimate --op`.

In: a name in `OPS` and dimensions by name. Out: `Kernel`s, as a trace of the op would give them; or an `OpError` that
says which dimensions the op takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from maya.estimators.features.library import convolution_kernel
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.models.attention import IMPLEMENTATIONS, attention_kernel
from maya.estimators.models.bounds import BYTES_PER_ELEMENT, element_bytes
from maya.estimators.models.gemm import LAYOUTS, gemm_kernel
from maya.estimators.models.row_traffic import softmax_variant
from maya.util.suggestions import did_you_mean

Value = int | str | bool
Answers = Mapping[str, Value]


class OpError(ValueError):
    """An op does not exist, or a dimension is missing or unknown."""


@dataclass(frozen=True)
class Op:
    """The dimensions of an op, and its kernels."""

    kernels: Callable[[Answers, str], list[Kernel]]
    needs: tuple[str, ...]
    takes: dict[str, Value] = field(default_factory=dict)  # optional dimensions and their defaults

    def usage(self, name: str) -> str:
        words = [f"--op {name}", *(f"--{_option(dimension)} N" for dimension in self.needs)]
        for dimension, assumed in self.takes.items():
            value = "" if isinstance(assumed, bool) else f" {assumed or 'N'}"
            words.append(f"[--{_option(dimension)}{value}]")
        return " ".join(words)


def kernels_for(op: str, dtype: str, given: Answers) -> list[Kernel]:
    """The kernels of an op; `given` are the user's dimensions."""
    if op not in OPS:
        raise OpError(f'there is no op "{op}"{did_you_mean(op, OPS)}; there are: {", ".join(OPS)}')
    known = OPS[op]
    if dtype not in BYTES_PER_ELEMENT:
        known_types = ", ".join(BYTES_PER_ELEMENT)
        raise OpError(f'unknown dtype "{dtype}"{did_you_mean(dtype, BYTES_PER_ELEMENT)}; there are: {known_types}')
    foreign = [name for name in given if name not in known.needs and name not in known.takes]
    missing = [name for name in known.needs if name not in given]
    if foreign or missing:
        wrong = [f"{op} needs {' '.join(f'--{_option(name)}' for name in missing)}"] if missing else []
        wrong += [f"{op} takes no {' '.join(f'--{_option(name)}' for name in foreign)}"] if foreign else []
        raise OpError(f"{' and '.join(wrong)}; write: maya estimate {known.usage(op)} --dtype {dtype} --gpu NAME")
    return known.kernels({**known.takes, **given}, dtype)


def _option(dimension: str) -> str:
    return dimension.replace("_", "-")


def _int(given: Answers, name: str) -> int:
    return int(given[name])


def _one_of(given: Answers, name: str, known: tuple[str, ...]) -> str:
    value = str(given[name])
    if value not in known:
        raise OpError(f'unknown --{_option(name)} "{value}"{did_you_mean(value, known)}; one of: {", ".join(known)}')
    return value


def _gemm(given: Answers, dtype: str) -> list[Kernel]:
    m, n, k, batch = (_int(given, name) for name in ("m", "n", "k", "batch"))
    return [gemm_kernel(m, n, k, batch=batch, dtype=dtype, layout=_one_of(given, "layout", LAYOUTS))]


def _attention(given: Answers, dtype: str) -> list[Kernel]:
    batch, heads, queries, head_dim = (_int(given, name) for name in ("batch", "heads", "queries", "head_dim"))
    kernel = attention_kernel(
        batch,
        heads,
        queries,
        head_dim,
        keys=_int(given, "keys") or None,
        kv_heads=_int(given, "kv_heads") or None,
        causal=bool(given["causal"]),
        dtype=dtype,
        implementation=_one_of(given, "implementation", IMPLEMENTATIONS),
        backward=bool(given["backward"]),
    )
    return [kernel]


def _convolution(given: Answers, dtype: str) -> list[Kernel]:
    batch, channels, filters, side = (_int(given, name) for name in ("batch", "channels", "filters", "side"))
    window, stride, groups = (_int(given, name) for name in ("window", "stride", "groups"))
    result = math.ceil(side / stride)
    x, w, y = [batch, channels, side, side], [filters, channels // groups, window, window], [batch, filters]
    directions = ("dgrad", "wgrad") if given["backward"] else ("forward",)
    return [
        convolution_kernel(dtype, x, w, [*y, result, result], stride=[stride, stride], groups=groups, variant=direction)
        for direction in directions
    ]


def _elementwise(given: Answers, dtype: str) -> list[Kernel]:
    elements, inputs, size = _int(given, "elements"), _int(given, "inputs"), element_bytes(dtype)
    shape = {"elements": float(elements), "operands": inputs + 1.0}
    read, written = size * elements * inputs, size * elements
    return [Kernel(KernelClass.ELEMENTWISE, dtype, float(elements), read, written, shape, "vectorized")]


def _dropout(given: Answers, dtype: str) -> list[Kernel]:
    elements, size = float(_int(given, "elements")), element_bytes(dtype)
    read, written = size * elements, (size + 1.0) * elements
    return [
        Kernel(
            KernelClass.RANDOM,
            dtype,
            20.0 * elements,
            read,
            written,
            {"elements": elements},
            "fused_dropout_kernel_vec",
        )
    ]


def _rows(given: Answers) -> tuple[float, float, dict[str, float]]:
    rows, columns = float(_int(given, "rows")), float(_int(given, "columns"))
    return rows, columns, {"rows": rows, "columns": columns}


def _reduction(given: Answers, dtype: str) -> list[Kernel]:
    rows, columns, shape = _rows(given)
    size = element_bytes(dtype)
    return [Kernel(KernelClass.REDUCTION, dtype, rows * columns, size * rows * columns, size * rows, shape, "inner")]


def _norm(given: Answers, dtype: str) -> list[Kernel]:
    rows, columns, shape = _rows(given)
    moved, flops = element_bytes(dtype) * rows * columns, 8.0 * rows * columns
    if not given["backward"]:
        return [Kernel(KernelClass.NORM, dtype, flops, moved, moved + 8.0 * rows, shape, "layer_norm_forward")]
    read = 2.0 * moved + 8.0 * rows
    return [
        Kernel(KernelClass.NORM, dtype, flops, read, moved, shape, "layer_norm_backward"),
        Kernel(KernelClass.NORM, dtype, flops, read, 8.0 * columns, shape, "layer_norm_backward_parameters"),
    ]


def _softmax(given: Answers, dtype: str, family: str = "softmax") -> list[Kernel]:
    rows, columns, shape = _rows(given)
    moved = element_bytes(dtype) * rows * columns
    direction, read = ("backward", 2.0 * moved) if given["backward"] else ("forward", moved)
    variant = softmax_variant(f"{family}_{direction}", element_bytes(dtype) * columns)
    return [Kernel(KernelClass.SOFTMAX, dtype, 8.0 * rows * columns, read, moved, shape, variant)]


def _cross_entropy(given: Answers, dtype: str) -> list[Kernel]:
    """torch's implementation: log-softmax, then one element of each row; backward first fills a gradient with zeros and
    sets one element of each row."""
    rows, columns, _ = _rows(given)
    logarithms = _softmax(given, dtype, "log_softmax")
    shape = {"rows": rows, "turns": float(math.ceil(rows / 1024))}
    if not given["backward"]:
        return [*logarithms, Kernel(KernelClass.CROSS_ENTROPY, dtype, rows, 40.0 * rows, 4.0, shape, "forward")]
    zeros = Kernel(
        KernelClass.MEMSET, dtype, 0.0, 0.0, element_bytes(dtype) * rows * columns, {"elements": rows * columns}, "fill"
    )
    return [
        zeros,
        Kernel(KernelClass.CROSS_ENTROPY, dtype, rows, 8.0 * rows, 32.0 * rows, shape, "backward"),
        *logarithms,
    ]


def _embedding(given: Answers, dtype: str) -> list[Kernel]:
    rows, columns, shape = _rows(given)
    moved = element_bytes(dtype) * rows * columns
    return [Kernel(KernelClass.EMBEDDING, dtype, 0.0, moved + 8.0 * rows, moved, shape, "forward")]


# Kernels of AdamW over lists of tensors: the op, the number of lists it accesses, and how many of them it writes.
_FOREACH_ADAMW = (
    ("foreach_mul", 1, 1),  # weight decay
    ("foreach_lerp", 2, 2),  # first moment
    ("foreach_mul", 1, 1),
    ("foreach_addcmul", 3, 3),  # second moment
    ("foreach_sqrt", 2, 1),
    ("foreach_div", 1, 1),
    ("foreach_add", 1, 1),
    ("foreach_addcdiv", 3, 3),
)


def _optimizer(given: Answers, dtype: str) -> list[Kernel]:
    elements, tensors = float(_int(given, "elements")), float(_int(given, "tensors"))
    moved = element_bytes(dtype) * elements
    shape = {"elements": elements, "tensors": tensors}
    if _one_of(given, "implementation", ("fused", "foreach")) == "fused":
        shape["lists"] = 4.0
        return [Kernel(KernelClass.OPTIMIZER, dtype, 20.0 * elements, 4.0 * moved, 3.0 * moved, shape, "fused_adamw")]
    return [
        Kernel(
            KernelClass.OPTIMIZER, dtype, 2.0 * elements, reads * moved, moved, shape | {"lists": float(lists)}, name
        )
        for name, lists, reads in _FOREACH_ADAMW
    ]


def _copy(given: Answers, dtype: str) -> list[Kernel]:
    elements = float(_int(given, "elements"))
    moved = element_bytes(dtype) * elements
    variant = "transposed" if given["transposed"] else "vectorized"
    return [Kernel(KernelClass.COPY, dtype, 0.0, moved, moved, {"elements": elements, "operands": 2.0}, variant)]


def _transfer(given: Answers, dtype: str) -> list[Kernel]:
    size = float(_int(given, "bytes"))
    direction = _one_of(given, "direction", ("HtoD", "DtoH"))
    return [Kernel(KernelClass.TRANSFER, "uint8", 0.0, size, size, {"bytes": size}, direction)]


def _memset(given: Answers, dtype: str) -> list[Kernel]:
    size = float(_int(given, "bytes"))
    return [Kernel(KernelClass.MEMSET, "uint8", 0.0, 0.0, size, {"elements": size}, "memset")]


_EITHER_WAY: dict[str, Value] = {"backward": False}

OPS: dict[str, Op] = {
    "gemm": Op(_gemm, ("m", "n", "k"), {"batch": 1, "layout": "TN"}),
    "attention": Op(
        _attention,
        ("batch", "heads", "queries", "head_dim"),
        {"keys": 0, "kv_heads": 0, "causal": False, "implementation": "flash", **_EITHER_WAY},
    ),
    "convolution": Op(
        _convolution, ("batch", "channels", "filters", "side"), {"window": 3, "stride": 1, "groups": 1, **_EITHER_WAY}
    ),
    "elementwise": Op(_elementwise, ("elements",), {"inputs": 1}),
    "reduction": Op(_reduction, ("rows", "columns")),
    "norm": Op(_norm, ("rows", "columns"), _EITHER_WAY),
    "softmax": Op(_softmax, ("rows", "columns"), _EITHER_WAY),
    "cross_entropy": Op(_cross_entropy, ("rows", "columns"), _EITHER_WAY),
    "embedding": Op(_embedding, ("rows", "columns")),
    "optimizer": Op(_optimizer, ("elements",), {"tensors": 1, "implementation": "fused"}),
    "dropout": Op(_dropout, ("elements",)),
    "copy": Op(_copy, ("elements",), {"transposed": False}),
    "transfer": Op(_transfer, ("bytes",), {"direction": "HtoD"}),
    "memset": Op(_memset, ("bytes",)),
}
