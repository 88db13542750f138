"""NVIDIA aiconfigurator's tables: GEMMs in the forward layout, and attention forward of serving frameworks.

In: the folder of its tables, named by their path with "/" written as "__". Out: measurements of one device. Latencies
are in milliseconds, of one GPU replaying a CUDA graph, in short bursts.
"""

from __future__ import annotations

import math
from pathlib import Path

from maya.estimators.models.attention import attention_kernel
from maya.estimators.models.gemm import gemm_kernel
from maya.estimators.training.sources import Measurements, Source
from maya.estimators.training.sources.tables import find_table, read_columns, rows_of

SOURCE = Source("ai-dynamo/aiconfigurator @095f58a51", "Apache-2.0", "2026-11")

_SYSTEMS = {
    "a100-80": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
}
_SGLANG = {"a100-80": "0.5.10"}
_GEMM_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}

# Duration of the smallest attention kernel; a serving framework's time for it is this plus the framework's overhead.
_SMALLEST_ATTENTION = 4e-6


def gemm(folder: Path, device: str, dtype: str) -> Measurements:
    """GEMMs x[m, k] @ w[n, k]^T.

    bf16 GEMMs were measured with two frameworks that call the same library, and differ by 5 to 10 %: the geometric mean
    is used. On A100 one of the two has few shapes and is left out. fp8 GEMMs come from the framework that measured them
    without the quantisation of their input.
    """
    tables = [_gemm_table(folder, f"{_SYSTEMS[device]}__gemm__sglang__{_SGLANG.get(device, '0.5.14')}", dtype)]
    if dtype == "bf16" and device != "a100-80":
        tables.append(_gemm_table(folder, f"{_SYSTEMS[device]}__gemm__trtllm__1.3.0rc20", dtype))
    measured = Measurements(SOURCE, "(n, k)")
    for shape, seconds in tables[0].items():
        times = [seconds, *(table[shape] for table in tables[1:] if shape in table)]
        m, n, k = shape
        measured.add(gemm_kernel(m, n, k, dtype=dtype), math.prod(times) ** (1 / len(times)), f"n={n} k={k}")
    return measured


def _gemm_table(folder: Path, name: str, dtype: str) -> dict[tuple[int, int, int], float]:
    columns = read_columns(find_table(folder, f"{name}__gemm_perf"), ("gemm_dtype", "m", "n", "k", "latency"))
    return {
        (int(m), int(n), int(k)): float(latency) * 1e-3
        for of_dtype, m, n, k, latency in rows_of(columns)
        if of_dtype == _GEMM_DTYPES[dtype]
    }


def attention(folder: Path, device: str, implementation: str, kernels: tuple[str, ...]) -> Measurements:
    """Attention forward by the kernels named: causal with grouped heads, and without a mask where there is a table.

    The framework's overhead (it also writes the cache) is subtracted: the time of its smallest attention beyond that of
    the kernel.
    """
    measured = Measurements(SOURCE, "(heads, key-value heads, head dimension)")
    prefix = f"{_SYSTEMS[device]}__"
    version = f"sglang__{_SGLANG.get(device, '0.5.14')}"
    wanted = ["kernel_source", "attn_dtype", "batch_size", "isl", "num_heads", "head_dim", "latency"]
    for table, causal in (("attention", True), ("encoder_attention", False)):
        name = "context_attention_perf" if causal else "encoder_attention_perf"
        try:
            path = find_table(folder, f"{prefix}{table}__{version}__{name}")
        except FileNotFoundError:
            if causal:
                raise
            continue  # A100 has no table without a mask
        extra = ["num_key_value_heads", "kv_cache_dtype", "step"] if causal else []
        if causal and device not in _SGLANG:
            extra.append("window_size")
        _add_attention(measured, path, (*wanted, *extra), implementation, kernels)
    return measured


def _add_attention(
    measured: Measurements, path: Path, names: tuple[str, ...], implementation: str, kernels: tuple[str, ...]
) -> None:
    found = []
    for row in rows_of(read_columns(path, names)):
        value = dict(zip(names, row, strict=True))
        whole = value.get("window_size", "0") == "0" and value.get("step", "0") == "0"
        if (
            whole
            and value["kernel_source"] in kernels
            and {value["attn_dtype"], value.get("kv_cache_dtype", "bfloat16")} == {"bfloat16"}
        ):
            found.append(value)
    if not found:
        return
    besides = max(0.0, min(float(value["latency"]) * 1e-3 for value in found) - _SMALLEST_ATTENTION)
    for value in found:
        heads, head_dim = int(value["num_heads"]), int(value["head_dim"])
        kv_heads = int(value.get("num_key_value_heads") or heads)
        causal = "num_key_value_heads" in value
        kernel = attention_kernel(
            int(value["batch_size"]),
            heads,
            int(value["isl"]),
            head_dim,
            kv_heads=kv_heads,
            causal=causal,
            implementation=implementation,
        )
        seconds = float(value["latency"]) * 1e-3 - besides
        measured.add(kernel, seconds, f"heads={heads} kv_heads={kv_heads} head_dim={head_dim} causal={causal}")
