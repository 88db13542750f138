"""SimuMax's measured efficiencies: GEMMs of training by layout, attention forward and backward.

In: the folder of its system files (JSON), whose efficiencies are fractions of the device's bf16 peak. Out: measurements
of one device; times follow from the source's count of FLOPs, which for attention ignores the mask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maya.estimators.models.attention import attention_kernel
from maya.estimators.models.gemm import gemm_kernel
from maya.estimators.training.sources import Measurements, Source

SOURCE = Source("MooreThreads/SimuMax @4dcaae5", "Apache-2.0", "2026-11")
FILES = {"a100-pcie": "a100_pcie.json", "b200": "b200_bf16_ceperm.json"}


def gemm(folder: Path, device: str, layout: str) -> Measurements:
    """GEMMs in one layout: TN forward, NN gradient of the input, NT gradient of the weights, accumulated in fp32."""
    measured = Measurements(SOURCE, "(n, k)")
    operation = _operation(folder, device, "matmul")
    for text, efficiency in operation["accurate_efficient_factor"].items():
        value = _values(text)
        m, n, k, batch = (int(value[name]) for name in ("m", "n", "k", "b"))
        if value["layout"] != layout:
            continue
        kernel = gemm_kernel(
            m, n, k, batch=batch, layout=layout, out_dtype=value["out_dtype"], accumulate=value["accumulate"] == "True"
        )
        measured.add(kernel, kernel.flops / (efficiency * operation["tflops"] * 1e12), f"n={n} k={k}")
    return measured


def grouped(folder: Path, device: str) -> Measurements:
    """Forward GEMMs of experts: `ng` GEMMs of the same size."""
    measured = Measurements(SOURCE, "(n, k)")
    operation = _operation(folder, device, "group_matmul")
    for text, efficiency in operation["accurate_efficient_factor"].items():
        value = _values(text)
        groups, m, n, k = (int(value[name]) for name in ("ng", "M", "N", "K"))
        if value["stage"] == "fwd":
            kernel = gemm_kernel(m, n, k, batch=groups)
            measured.add(kernel, kernel.flops / (efficiency * operation["tflops"] * 1e12), f"n={n} k={k}")
    return measured


def attention(folder: Path, device: str, implementation: str, backward: bool) -> Measurements:
    """Causal attention of TransformerEngine, on contiguous inputs."""
    measured = Measurements(SOURCE, "(heads, key-value heads, head dimension, length)")
    operation = _operation(folder, device, "sdp_bwd" if backward else "sdp_fwd")
    for text, efficiency in operation["accurate_efficient_factor"].items():
        value = _values(text)
        batch, length, heads, kv_heads, head_dim, value_dim = (
            int(value[name]) for name in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
        )
        if value["qkv_contiguous"] != "True":
            continue
        kernel = attention_kernel(
            batch,
            heads,
            length,
            head_dim,
            kv_heads=kv_heads,
            value_dim=value_dim,
            causal=True,
            implementation=implementation,
            backward=backward,
        )
        counted = 2.0 * batch * heads * length * length * (head_dim + value_dim) * (2.5 if backward else 1.0)
        seconds = counted / (efficiency * operation["tflops"] * 1e12)
        measured.add(kernel, seconds, f"{heads} {kv_heads} {head_dim} {length}")
    return measured


def _operation(folder: Path, device: str, name: str) -> dict[str, Any]:
    path = folder / FILES[device]
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    operation: dict[str, Any] = json.loads(path.read_text())["accelerator"]["op"][name]
    return operation


def _values(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split(", "))
