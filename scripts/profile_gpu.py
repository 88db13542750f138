#!/usr/bin/env python3
"""Measure the GPU of this machine for `maya calibrate`: GEMMs, attention, memory-bound kernels, collectives.

    python profile_gpu.py --out my-gpu.csv --minutes 30        # kernels, on one GPU
    torchrun --nproc-per-node 8 profile_gpu.py --out my.csv    # collectives, on several: my-nccl.csv

Needs PyTorch with CUDA and nothing else; copy this one file to the machine with the GPU. The script writes every row as
soon as it is measured, and skips rows that are already in the file: stop it at any time, start it again to go on.
The columns are those of `COLUMNS`; `maya calibrate` takes the first file, `maya net fit` the second.

Each row is one kernel (or one library call), described the way Maya describes kernels: kind, variant, dtype, shape,
floating point operations, bytes read and written (each tensor once). Times are medians. Short kernels are timed many at
a time in a CUDA graph, so that the host's launches do not count; before memory-bound kernels, the L2 cache is
overwritten, as other kernels do in a training step (--cache).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"profile_gpu.py: PyTorch cannot be imported ({error}); run it where a CUDA build of PyTorch is installed")

COLUMNS = (
    "device",  # as CUDA names it
    "kind",  # gemm, attention, elementwise, ...
    "variant",  # gemm: layout (TN, NN, NT); attention: implementation and direction; ...
    "dtype",  # bf16, fp16, tf32, fp32, fp8, ...
    "shape",  # name=value, separated by blanks: m=4096 n=4096 k=4096 batch=1
    "flops",
    "bytes_read",
    "bytes_written",
    "time_us",  # median
    "fastest_us",
    "repeats",
    "cold",  # 1: the L2 cache was overwritten before each repeat
    "op",  # the function called
    "torch",
    "cuda",
    "date",
)
NCCL_COLUMNS = (
    "op", "nranks", "nodes", "gpus_per_node", "size_bytes", "dtype", "time_us", "algo", "proto", "device", "torch",
    "nccl", "date",
)  # fmt: skip

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
MIB = 1 << 20
SHORTEST_US = 0.01  # nothing on a GPU takes less: a shorter time is a failed measurement
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kernel to measure. `prepare` makes its tensors and returns the function to time."""

    kind: str
    variant: str
    dtype: str
    op: str
    shape: dict[str, float]
    flops: float
    read: float
    written: float
    prepare: Callable[[], Run]

    @property
    def shape_text(self) -> str:
        return " ".join(f"{name}={_number(value)}" for name, value in self.shape.items())

    def cold(self, cache: str) -> bool:
        """Whether to overwrite the L2 cache first. A training step does, except for operands of GEMMs."""
        return cache == "cold" or (cache == "auto" and self.kind not in ("gemm", "attention"))

    def key(self, cache: str) -> tuple[str, ...]:
        """The key that identifies a row."""
        return self.kind, self.variant, self.dtype, self.op, self.shape_text, str(int(self.cold(cache)))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _size(dtype: str) -> int:
    return 1 if dtype == "fp8" else DTYPES[dtype].itemsize


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Noise: GEMMs of zeros draw less power than those of a model, and so run at a higher clock."""
    return torch.randn(*shape, device="cuda").to(dtype) if math.prod(shape) < 1 << 28 else _tiled(shape, dtype)


def _tiled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Like `_random`, without a float32 copy of the whole tensor."""
    return torch.empty(shape, device="cuda", dtype=dtype).normal_()


# ---------------------------------------------------------------------------------------------------------------- GEMMs

HIDDEN = (768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 12288)
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _weights() -> list[tuple[int, int]]:
    """(n, k) of linear layers, and some odd sizes that no model has, so that the rows are not all round numbers."""
    pairs = {(4096, 14336), (14336, 4096), (28672, 8192), (8192, 28672), (1024, 4096), (1024, 8192), (6144, 4096)}
    pairs |= {(11008, 4096), (4096, 11008), (13824, 5120), (5120, 13824), (2048, 7168), (7168, 2048), (32000, 4096)}
    pairs |= {(128256, 4096), (50304, 1024)}
    for hidden in HIDDEN:
        pairs |= {(hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)}
        if hidden <= 6144:
            pairs.add((3 * hidden, hidden))
    chance = random.Random(1)
    while len(pairs) < 90:
        n, k = (int(2 ** chance.uniform(6, 14)) // step * step for step in (chance.choice((8, 16, 64)), 8))
        pairs.add((max(n, 8), max(k, 8)))
    return sorted(pairs)


def gemm_cases() -> Iterator[Case]:
    capability = torch.cuda.get_device_capability()
    dtypes = ["fp16", "fp32"]
    if capability >= (8, 0):
        dtypes = ["bf16", "fp16", "tf32", "fp32"]
    if capability >= (8, 9):
        dtypes.append("fp8")
    for n, k in _weights():
        for m in ROWS:
            if n * k * m > 2**42:
                continue
            for dtype in dtypes:
                if dtype == "fp32" and n * k * m > 2**37:
                    continue  # takes seconds per call
                if dtype == "fp8" and (n % 16 or k % 16 or m % 16):
                    continue
                for layout in ("TN",) if dtype == "fp8" else ("TN", "NN", "NT"):
                    yield _gemm(m, n, k, 1, dtype, layout)
    for batch in (8, 32, 128):
        for length in (128, 512, 1024, 2048):
            for head in (64, 128):
                for dtype in dtypes[:3]:
                    if dtype != "fp8":
                        yield _gemm(length, length, head, batch, dtype, "TN")
                        yield _gemm(length, head, length, batch, dtype, "NN")


def _gemm(m: int, n: int, k: int, batch: int, dtype: str, layout: str) -> Case:
    size, out_size = _size(dtype), 2 if dtype == "fp8" else _size(dtype)
    op = "_scaled_mm" if dtype == "fp8" else "mm" if batch == 1 else "bmm"

    def prepare() -> Run:
        if dtype == "fp8":
            a = _random(m, k).to(torch.float8_e4m3fn)
            b = _random(n, k).to(torch.float8_e4m3fn).t()
            scale = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        lead = (batch,) if batch > 1 else ()
        kind = DTYPES[dtype]
        # cuBLAS names the second operand first, and sees row-major matrices as transposed.
        b = _random(*lead, n, k, dtype=kind).mT if layout[0] == "T" else _random(*lead, k, n, dtype=kind)
        a = _random(*lead, k, m, dtype=kind).mT if layout[1] == "T" else _random(*lead, m, k, dtype=kind)
        product = torch.bmm if batch > 1 else torch.mm
        return lambda: product(a, b)

    shape = {"m": m, "n": n, "k": k, "batch": batch}
    flops = 2.0 * batch * m * n * k
    read, written = size * batch * (m * k + k * n), out_size * batch * m * n
    return Case("gemm", layout, dtype, op, shape, flops, read, written, prepare)


# ------------------------------------------------------------------------------------------------------------ attention

HEADS = ((32, 32, 64), (16, 16, 64), (12, 12, 64), (32, 8, 128), (32, 32, 128), (64, 8, 128), (16, 16, 96), (8, 8, 256))
LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def attention_cases() -> Iterator[Case]:
    dtypes = ("bf16", "fp16") if torch.cuda.get_device_capability() >= (8, 0) else ("fp16",)
    for heads, kv_heads, head in HEADS:
        for length in LENGTHS:
            for batch in (1, 4, 16):
                if batch * length > 32768:
                    continue
                for causal in (True, False):
                    for implementation in BACKENDS:
                        for dtype in dtypes[: 1 if batch > 1 else 2]:
                            for backward in (False, True):
                                if implementation == "efficient" and kv_heads != heads:
                                    continue  # copies keys and values to all heads first
                                yield _attention(
                                    batch, heads, kv_heads, length, head, causal, dtype, implementation, backward
                                )


def _attention(
    batch: int, heads: int, kv_heads: int, length: int, head: int, causal: bool, dtype: str, implementation: str,
    backward: bool,
) -> Case:  # fmt: skip
    size = _size(dtype)
    query, keys = size * batch * heads * length * head, 2 * size * batch * kv_heads * length * head
    statistics_bytes = 4 * batch * heads * length
    pairs = batch * (length * (length + 1) / 2 if causal else float(length * length))
    products = 2.0 * heads * pairs * head
    flops, read, written = 2 * products, query + keys, query + statistics_bytes
    if backward:
        flops, read, written = 5 * products, query + keys + 2 * query + statistics_bytes, query + keys

    def prepare() -> Run:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q = _random(batch, heads, length, head, dtype=DTYPES[dtype]).requires_grad_(backward)
        k, v = (_random(batch, kv_heads, length, head, dtype=DTYPES[dtype]).requires_grad_(backward) for _ in range(2))
        backend = getattr(SDPBackend, BACKENDS[implementation])

        def forward() -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != heads)

        if not backward:
            return forward
        out = forward()
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    shape = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": length, "keys": length, "head_dim": head,
        "value_dim": head, "causal": int(causal),
    }  # fmt: skip
    variant = f"{implementation}_{'backward' if backward else 'forward'}"
    return Case("attention", variant, dtype, "scaled_dot_product_attention", shape, flops, read, written, prepare)


# ------------------------------------------------------------------------------------------------- memory-bound kernels

ELEMENTS = tuple(int(2**exponent) for exponent in (12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28))
ODD_ELEMENTS = (300_000, 3_000_000, 20_000_000, 77_000_000)
COLUMNS_OF_ROWS = (64, 128, 256, 768, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384, 32768)
ROW_COUNTS = (128, 1024, 2048, 4096, 8192, 16384, 65536)


def elementwise_cases() -> Iterator[Case]:
    for count in (*ELEMENTS, *ODD_ELEMENTS):
        for dtype in ("bf16", "fp32"):
            size = _size(dtype)
            # name, operands read, operations per element
            for name, reads, cost in (("add", 2, 1), ("mul", 2, 1), ("neg", 1, 1), ("gelu", 1, 10), ("silu", 1, 10)):
                shape = {"elements": count, "operands": reads + 1}
                call = _unary_or_binary(name, count, reads, dtype)
                read, written = size * count * reads, size * count
                yield Case("elementwise", "vectorized", dtype, name, shape, cost * count, read, written, call)


def _unary_or_binary(name: str, count: int, reads: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        tensors = [_random(count, dtype=DTYPES[dtype]) for _ in range(reads)]
        function = getattr(F, name) if name in ("gelu", "silu") else getattr(torch, name)
        return lambda: function(*tensors)

    return prepare


def copy_cases() -> Iterator[Case]:
    for count in (*ELEMENTS, *ODD_ELEMENTS):
        size = 2 * count
        shape = {"elements": size, "operands": 2}
        yield Case("copy", "vectorized", "uint8", "copy_", shape, 0, size, size, _copy(count))
        side = math.isqrt(count)
        shape = {"elements": side * side, "operands": 2}
        moved = 2 * side * side
        yield Case("copy", "transposed", "bf16", "copy_ transposed", shape, 0, moved, moved, _transpose(side))
        for direction in ("HtoD", "DtoH"):
            prepare = _transfer(count, direction)
            yield Case("transfer", direction, "uint8", "copy_ pinned", {"bytes": size}, 0, size, size, prepare)
        yield Case("memset", "fill", "bf16", "fill_", {"elements": count}, 0, 0, size, _fill(count))


def _copy(count: int) -> Callable[[], Run]:
    def prepare() -> Run:
        source = _random(count)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return prepare


def _transpose(side: int) -> Callable[[], Run]:
    def prepare() -> Run:
        source = _random(side, side).t()
        target = torch.empty(side, side, device="cuda", dtype=source.dtype)
        return lambda: target.copy_(source)

    return prepare


def _transfer(count: int, direction: str) -> Callable[[], Run]:
    def prepare() -> Run:
        host = torch.empty(count, dtype=torch.bfloat16, pin_memory=True)
        device = torch.empty(count, dtype=torch.bfloat16, device="cuda")
        target, source = (device, host) if direction == "HtoD" else (host, device)
        return lambda: target.copy_(source, non_blocking=True)

    return prepare


def _fill(count: int) -> Callable[[], Run]:
    def prepare() -> Run:
        target = torch.empty(count, device="cuda", dtype=torch.bfloat16)
        return lambda: target.fill_(1.5)

    return prepare


def _row_shapes() -> Iterator[tuple[int, int]]:
    for rows in ROW_COUNTS:
        for columns in COLUMNS_OF_ROWS:
            if 2**14 <= rows * columns <= 2**28:
                yield rows, columns


def norm_cases() -> Iterator[Case]:
    for rows, columns in _row_shapes():
        for dtype in ("bf16", "fp32"):
            moved = rows * columns * _size(dtype)
            shape = {"rows": rows, "columns": columns}
            flops = 8.0 * rows * columns
            forward = ("layer_norm_forward", moved, moved + 8 * rows)
            backward = ("layer_norm_backward", 2 * moved + 8 * rows, moved)
            for op, (variant, read, written) in (
                ("native_layer_norm", forward),
                ("native_layer_norm_backward", backward),
                ("_fused_rms_norm", forward),
                ("_fused_rms_norm_backward", backward),
            ):
                yield Case("norm", variant, dtype, op, shape, flops, read, written, _norm(op, rows, columns, dtype))


def _norm(op: str, rows: int, columns: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        x, gradient = (_random(rows, columns, dtype=DTYPES[dtype]) for _ in range(2))
        weight, bias = (_random(columns, dtype=DTYPES[dtype]) for _ in range(2))
        aten = torch.ops.aten
        if op == "native_layer_norm":
            return lambda: aten.native_layer_norm(x, [columns], weight, bias, 1e-5)
        if op == "_fused_rms_norm":
            return lambda: aten._fused_rms_norm(x, [columns], weight, 1e-5)
        if op == "native_layer_norm_backward":
            _, mean, deviation = aten.native_layer_norm(x, [columns], weight, bias, 1e-5)
            wanted = [True, False, False]
            return lambda: aten.native_layer_norm_backward(
                gradient, x, [columns], mean, deviation, weight, bias, wanted
            )
        _, deviation = aten._fused_rms_norm(x, [columns], weight, 1e-5)
        return lambda: aten._fused_rms_norm_backward(gradient, x, [columns], deviation, weight, [True, False])

    return prepare


def softmax_cases() -> Iterator[Case]:
    vocabularies = ((1024, 50304), (4096, 50304), (1024, 128256), (4096, 128256), (8192, 32000))
    for rows, columns in (*_row_shapes(), *vocabularies):
        for dtype in ("bf16", "fp32"):
            moved = rows * columns * _size(dtype)
            shape = {"rows": rows, "columns": columns}
            for family in ("softmax", "log_softmax"):
                for backward in (False, True):
                    op = f"{family}_{'backward' if backward else 'forward'}"
                    # Rows that torch cannot keep in shared memory are read again for each pass.
                    variant = op if columns * _size(dtype) < 47 * 1024 else f"{op}_in_passes"
                    prepare = _softmax(family, backward, rows, columns, dtype)
                    read = 2 * moved if backward else moved
                    yield Case("softmax", variant, dtype, op, shape, 8.0 * rows * columns, read, moved, prepare)


def _softmax(family: str, backward: bool, rows: int, columns: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        x, gradient = (_random(rows, columns, dtype=DTYPES[dtype]) for _ in range(2))
        aten = torch.ops.aten
        forward = aten._softmax if family == "softmax" else aten._log_softmax
        if not backward:
            return lambda: forward(x, -1, False)
        y = forward(x, -1, False)
        function = aten._softmax_backward_data if family == "softmax" else aten._log_softmax_backward_data
        return lambda: function(gradient, y, -1, DTYPES[dtype])

    return prepare


def reduction_cases() -> Iterator[Case]:
    for rows, columns in _row_shapes():
        for dtype in ("bf16", "fp32"):
            size = _size(dtype)
            for variant, dim in (("inner", 1), ("outer", 0)):
                results, summed = (rows, columns) if dim == 1 else (columns, rows)
                shape = {"rows": results, "columns": summed}
                prepare = _sum(rows, columns, dim, dtype)
                read, written = rows * columns * size, results * size
                yield Case("reduction", variant, dtype, "sum", shape, rows * columns, read, written, prepare)


def _sum(rows: int, columns: int, dim: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        x = _random(rows, columns, dtype=DTYPES[dtype])
        return lambda: x.sum(dim)

    return prepare


def cross_entropy_cases() -> Iterator[Case]:
    """Pick one element per row. (The backward fills the others first: that kernel has its own cases.)"""
    for rows in (256, 1024, 2048, 4096, 8192, 16384, 32768):
        for classes in (1000, 32000, 128256):
            if rows * classes <= 2**30:
                shape = {"rows": rows, "turns": math.ceil(rows / 1024)}  # one block of 1024 threads does it all
                op = f"nll_loss_forward {classes}"
                prepare = _nll_loss(rows, classes)
                yield Case("cross_entropy", "forward", "fp32", op, shape, rows, 40.0 * rows, 4.0, prepare)


def _nll_loss(rows: int, classes: int) -> Callable[[], Run]:
    def prepare() -> Run:
        logits = _random(rows, classes, dtype=torch.float32)
        target = torch.randint(classes, (rows,), device="cuda")
        return lambda: torch.ops.aten.nll_loss_forward(logits, target, None, 1, -100)

    return prepare


def embedding_cases() -> Iterator[Case]:
    for tokens in (128, 1024, 4096, 8192, 16384, 65536):
        for columns in (256, 768, 1024, 2048, 4096, 8192):
            for dtype in ("bf16", "fp32"):
                moved = tokens * columns * _size(dtype)
                shape = {"rows": tokens, "columns": columns}
                prepare = _embedding(tokens, columns, dtype)
                yield Case("embedding", "forward", dtype, "embedding", shape, 0, moved + 8 * tokens, moved, prepare)


def _embedding(tokens: int, columns: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        table = _random(50304, columns, dtype=DTYPES[dtype])
        index = torch.randint(50304, (tokens,), device="cuda")
        return lambda: F.embedding(index, table)

    return prepare


_CHUNK = 65536  # elements per block in torch's foreach kernels
_MOST_CHUNKS = 320  # per launch


def optimizer_cases() -> Iterator[Case]:
    for tensors in (1, 4, 16):
        for elements in (2**14, 2**17, 2**19, 2**20, 2**21, 2**22, 2**24):
            if tensors * math.ceil(elements / _CHUNK) > _MOST_CHUNKS:
                continue
            total = tensors * elements
            for dtype in ("fp32", "bf16"):
                size = _size(dtype)
                # name, tensor lists, lists that are read, operations per element
                for name, lists, reads, cost in (
                    ("_fused_adamw_", 4, 4, 20),
                    ("_foreach_mul_", 1, 1, 2),
                    ("_foreach_add_", 2, 2, 2),
                    ("_foreach_lerp_", 2, 2, 2),
                    ("_foreach_addcmul_", 3, 3, 2),
                ):
                    written = total * size * (3 if name == "_fused_adamw_" else 1)
                    shape = {"elements": total, "tensors": tensors, "lists": lists}
                    prepare = _over_lists(name, tensors, elements, dtype)
                    read = total * size * reads
                    yield Case("optimizer", name.strip("_"), dtype, name, shape, cost * total, read, written, prepare)


def _over_lists(name: str, tensors: int, elements: int, dtype: str) -> Callable[[], Run]:
    def prepare() -> Run:
        def some() -> list[torch.Tensor]:
            return [_random(elements, dtype=DTYPES[dtype]) for _ in range(tensors)]

        first, second, third = some(), some(), some()
        if name == "_fused_adamw_":
            squares = [tensor.abs() for tensor in some()]
            steps = [torch.ones((), device="cuda") for _ in range(tensors)]
            return lambda: torch._fused_adamw_(
                first, second, third, squares, [], steps, lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
                amsgrad=False, maximize=False,
            )  # fmt: skip
        if name == "_foreach_mul_":
            return lambda: torch._foreach_mul_(first, 0.999)
        if name == "_foreach_add_":
            return lambda: torch._foreach_add_(first, second)
        if name == "_foreach_lerp_":
            return lambda: torch._foreach_lerp_(first, second, 0.1)
        return lambda: torch._foreach_addcmul_(first, second, third, 0.1)

    return prepare


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "gemm": gemm_cases,
    "attention": attention_cases,
    "elementwise": elementwise_cases,
    "copy": copy_cases,
    "norm": norm_cases,
    "softmax": softmax_cases,
    "reduction": reduction_cases,
    "cross_entropy": cross_entropy_cases,
    "embedding": embedding_cases,
    "optimizer": optimizer_cases,
}
# Cases of each family per turn: GEMMs take most of the time, and have the most dimensions.
TURNS = {"gemm": 8, "attention": 3}


def all_cases(families: Sequence[str], quick: bool) -> list[Case]:
    """Cases in turns from all families, in a fixed random order within each, so that a run that stops early covers all
    of them. `quick`: the smallest case of each variant and dtype."""
    found: list[list[Case]] = []
    for family in families:
        cases = list(FAMILIES[family]())
        if quick:
            smallest: dict[tuple[str, ...], Case] = {}
            for case in sorted(cases, key=lambda case: (case.read + case.written, case.flops)):
                if case.read + case.written >= MIB:
                    smallest.setdefault((case.kind, case.variant, case.dtype, case.op.split()[0]), case)
            cases = list(smallest.values())
        random.Random(family).shuffle(cases)
        found.append(cases)
    result: list[Case] = []
    while any(found):
        for family, cases in zip(families, found, strict=True):
            turn = TURNS.get(family, 1)
            result += cases[:turn]
            del cases[:turn]
    return result


# ------------------------------------------------------------------------------------------------------------ measuring


class Stopwatch:
    """Times on the device, in microseconds."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.stream = torch.cuda.Stream()
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self._cache = torch.empty(max(4 * cache, 64 * MIB), dtype=torch.uint8, device="cuda")

    def measure(self, prepare: Callable[[], Run], cold: bool) -> list[float]:
        """The times of all repeats; cold: with none of the operands in the L2 cache."""
        with torch.cuda.stream(self.stream):
            run = prepare()
            for _ in range(3):  # the first calls load libraries, choose kernels and allocate
                run()
            torch.cuda.synchronize()
            once = self._timed(run)
            if cold:
                return self._cold(run, once)
            launch, together = self._captured(run, max(1, min(50, math.ceil(500.0 / max(once, 1.0)))))
            launch()
            # Long kernels are steady: a quarter of a second is enough.
            repeats = max(1, min(self.repeats, int(250_000 / max(once * together, 1.0))))
            return [self._timed(launch) / together for _ in range(max(repeats, min(3, self.repeats)))]

    def _cold(self, run: Run, once: float) -> list[float]:
        """Overwrite the cache before each call; measure that time by itself and subtract it."""
        count = max(1, min(10, math.ceil(1000.0 / max(once, 1.0))))
        both, together = self._captured(lambda: (self._overwrite_cache(), run()), count)
        flush, flushes = self._captured(self._overwrite_cache, count)
        if together == flushes == count:
            both()
            flush()
            times = [(self._timed(both) - self._timed(flush)) / count for _ in range(self.repeats)]
            if statistics.median(times) > SHORTEST_US:
                return times
        # One call at a time: includes about 2 us for the events themselves.
        return [self._timed(run, after_flush=True) for _ in range(self.repeats)]

    def _overwrite_cache(self) -> None:
        self._cache.zero_()

    def _captured(self, run: Run, together: int) -> tuple[Run, int]:
        """A graph of several calls, or one call if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin()
            try:
                for _ in range(together):
                    run()
            finally:
                graph.capture_end()
        except RuntimeError:
            torch.cuda.synchronize()
            return run, 1
        return graph.replay, together

    def _timed(self, launch: Run, after_flush: bool = False) -> float:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if after_flush:
            self._overwrite_cache()
        before.record()
        launch()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e3


def measure_kernels(arguments: argparse.Namespace) -> None:
    table = Table(arguments.out, COLUMNS)
    keys = ("kind", "variant", "dtype", "op", "shape", "cold")
    device = torch.cuda.get_device_name()
    done = {tuple(row[name] for name in keys) for row in table.rows if row["device"] == device}
    wanted = [case for case in all_cases(arguments.only, arguments.quick) if case.key(arguments.cache) not in done]
    progress = Progress(len(wanted), arguments.minutes)
    print(f"{device}: {len(wanted)} to measure, {len(done)} in {arguments.out} already", file=sys.stderr)
    stopwatch = Stopwatch(arguments.repeats)
    failures: dict[str, int] = {}
    for case in wanted:
        if progress.over():
            print("the time is over; run the same command again to go on with the rest", file=sys.stderr)
            break
        if 4 * (case.read + case.written) > torch.cuda.mem_get_info()[0]:
            failures["needs more memory than there is"] = failures.get("needs more memory than there is", 0) + 1
            continue
        try:
            times = stopwatch.measure(case.prepare, case.cold(arguments.cache))
        except (RuntimeError, AttributeError) as error:  # this device, or this version of torch, has no such kernel
            reason = f"{case.kind} {case.variant} {case.dtype}: {str(error).splitlines()[0][:100]}"
            failures[reason] = failures.get(reason, 0) + 1
            torch.cuda.empty_cache()
            continue
        median = statistics.median(times)
        if median <= SHORTEST_US:
            failures["took no time"] = failures.get("took no time", 0) + 1
            continue
        work = (case.kind, case.variant, case.dtype, case.shape_text)
        amounts = map(_number, (case.flops, case.read, case.written))
        found = (f"{median:.3f}", f"{min(times):.3f}", len(times), int(case.cold(arguments.cache)), case.op)
        table.add([device, *work, *amounts, *found, torch.__version__, torch.version.cuda, _today()])
        rate = f"{case.flops / median / 1e6:.1f} TFLOPS" if case.kind in ("gemm", "attention") else ""
        rate = rate or f"{(case.read + case.written) / median / 1e3:.0f} GB/s"
        progress.say(f"{case.kind} {case.variant} {case.dtype} {case.shape_text}  {median:.1f} us  {rate}")
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2:
            torch.cuda.empty_cache()
    table.close()
    progress.end()
    for reason, times_failed in sorted(failures.items()):
        print(f"left out: {times_failed} x {reason}", file=sys.stderr)
    pack = arguments.out.with_suffix(".npz")
    print(f"wrote {table.added} rows to {arguments.out}", file=sys.stderr)
    print(f"next: maya calibrate {arguments.out} --gpu NAME --out {pack}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------- collectives


def measure_collectives(arguments: argparse.Namespace) -> None:
    """All ranks take part; rank 0 writes. A time is that of the slowest rank, as nccl-tests gives it."""
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
    path = arguments.out.with_name(f"{arguments.out.stem}-nccl.csv")
    table = Table(path, NCCL_COLUMNS) if rank == 0 else None
    known = [{(row["op"], row["nranks"], row["nodes"], row["size_bytes"]) for row in table.rows}] if table else [set()]
    dist.broadcast_object_list(known, src=0)
    largest = MIB if arguments.quick else 4 << 30
    smallest = MIB if arguments.quick else 1024
    sizes = [smallest * 2**i for i in range(int(math.log2(largest / smallest)) + 1)]
    wanted = [(op, size) for size in sizes for op in COLLECTIVES]
    nodes = max(1, ranks // per_node)
    wanted = [(op, n) for op, n in wanted if (op, str(ranks), str(nodes), str(_rounded(n, ranks))) not in known[0]]
    progress = Progress(len(wanted), arguments.minutes)
    for op, about in wanted:
        size = _rounded(about, ranks)
        # All ranks go on, or none: their clocks differ.
        over = torch.tensor([int(progress.over())], device="cuda")
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item():
            break
        try:
            run = _collective(op, size, rank, ranks)
            median = _time_collective(run, arguments.repeats)
        except torch.OutOfMemoryError:  # happens on all ranks alike: they hold the same tensors
            torch.cuda.empty_cache()
            continue
        slowest = torch.tensor([median], device="cuda", dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        microseconds = float(slowest.item())
        if table is not None and microseconds > 0:
            forced = (os.environ.get("NCCL_ALGO", ""), os.environ.get("NCCL_PROTO", ""))
            about_it = (torch.cuda.get_device_name(), torch.__version__, ".".join(map(str, torch.cuda.nccl.version())))
            table.add(
                [op, ranks, nodes, per_node, size, "float32", f"{microseconds:.2f}", *forced, *about_it, _today()]
            )
            progress.say(f"{op} {size} B over {ranks} ranks  {microseconds:.1f} us")
    dist.barrier()
    dist.destroy_process_group()
    if table is not None:
        table.close()
        progress.end()
        print(f"wrote {table.added} rows to {path}; next: maya net fit CLUSTER {path}", file=sys.stderr)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")


def _rounded(size: int, ranks: int) -> int:
    """The size, rounded down to a whole number of float32 per rank; at least one."""
    return max(size // (4 * ranks), 1) * 4 * ranks


def _collective(op: str, size: int, rank: int, ranks: int) -> Run:
    """`size` as nccl-tests counts it: the larger of the bytes that a rank sends and receives."""
    import torch.distributed as dist

    whole = torch.ones(size // 4, device="cuda")
    part = torch.ones(size // 4 // ranks, device="cuda")
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if op == "broadcast":
        return lambda: dist.broadcast(whole, src=0)
    if op == "reduce":
        return lambda: dist.reduce(whole, dst=0)
    received = torch.empty_like(whole)
    if op == "alltoall":
        return lambda: dist.all_to_all_single(received, whole)

    def send_to_next() -> None:
        sent = dist.P2POp(dist.isend, whole, (rank + 1) % ranks)
        got = dist.P2POp(dist.irecv, received, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()

    return send_to_next


def _time_collective(run: Run, repeats: int) -> float:
    """Microseconds per call, from many calls in a row."""
    import torch.distributed as dist

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        dist.barrier()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(repeats):
            run()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / repeats)
    return statistics.median(times)


# --------------------------------------------------------------------------------------------------- files and progress


class Table:
    """A CSV file that grows by whole rows."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.rows: list[dict[str, str]] = []
        self.added = 0
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # a row that was being written when the script was stopped is dropped
        if whole:
            reader = csv.DictReader(whole.decode().splitlines())
            if reader.fieldnames is None or tuple(reader.fieldnames) != tuple(columns):
                sys.exit(
                    f"{path}: has the columns {','.join(reader.fieldnames or ())}, not those of this script "
                    f"({','.join(columns)}); give another --out"
                )
            self.rows = list(reader)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole)
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not whole:
            self._writer.writerow(columns)
            self._file.flush()

    def add(self, values: Sequence[object]) -> None:
        self._writer.writerow(values)
        self._file.flush()
        self.added += 1

    def close(self) -> None:
        self._file.close()


class Progress:
    """Reports progress: every measurement on a terminal, otherwise a line now and then."""

    def __init__(self, total: int, minutes: float) -> None:
        self._total, self._minutes = total, minutes
        self._done, self._said = 0, 0.0
        self._start = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def over(self) -> bool:
        return time.monotonic() - self._start >= self._minutes * 60

    def say(self, what: str) -> None:
        self._done += 1
        now = time.monotonic()
        elapsed = now - self._start
        line = f"[{self._done}/{self._total}  {int(elapsed // 60)}:{int(elapsed % 60):02}] {what}"
        if self._terminal:
            print(f"\r\033[K{line[:160]}", end="", file=sys.stderr, flush=True)
        elif now - self._said >= 10:
            print(line, file=sys.stderr, flush=True)
            self._said = now

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def _families(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"no such families: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure this GPU for `maya calibrate`.")
    parser.add_argument("--out", type=Path, default=Path("gpu-profile.csv"), help="rows are added to this file")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this many minutes [60]")
    parser.add_argument("--only", type=_families, default=list(FAMILIES), help=f"some of {','.join(FAMILIES)}")
    parser.add_argument(
        "--cache",
        choices=["auto", "cold", "warm"],
        default="auto",
        help="overwrite the L2 cache before each call (cold), or not (warm); auto: cold except for GEMMs and attention",
    )
    parser.add_argument("--repeats", type=int, default=20, help="most repeats of each measurement [20]")
    parser.add_argument("--quick", action="store_true", help="one shape per kernel, few repeats: for a trial run")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            f"profile_gpu.py: torch {torch.__version__} finds no CUDA device here; run it on the machine with the GPU, "
            "with a CUDA build of PyTorch (torch.cuda.is_available() is True there)"
        )
    if arguments.quick:
        arguments.repeats = min(arguments.repeats, 3)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        measure_collectives(arguments)
    else:
        measure_kernels(arguments)


if __name__ == "__main__":
    main()
