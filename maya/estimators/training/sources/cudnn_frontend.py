"""The results of cuDNN frontend's attention benchmark: forward and backward, bf16 and fp8.

In: the folder of its CSV files. Out: measurements of one device and direction. Times are in milliseconds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from maya.estimators.models.attention import attention_kernel, window_pairs
from maya.estimators.training.sources import Measurements, Source

SOURCE = Source("NVIDIA/cudnn-frontend @3929da2", "MIT", "2026-11")

_GPUS = {"h200": "NVIDIA H200", "gb200": "NVIDIA GB200"}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


def attention(folder: Path, device: str, dtype: str, backward: bool) -> Measurements:
    """cuDNN's attention as measured by the benchmark of its frontend, without the deterministic backward."""
    files = sorted(folder.glob("sdpa__*.csv"))
    if not files:
        raise FileNotFoundError(f"{folder}/sdpa__*.csv does not exist")
    measured = Measurements(SOURCE, "(model, mask, length)")
    for path in files:
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                of_device = row["gpu_name"] == _GPUS[device] and row["backend"] == "cudnn" and row["success"] == "True"
                if of_device and _DTYPES.get(row["data_type"]) == dtype:
                    _add(measured, row, dtype, backward)
    return measured


def _add(measured: Measurements, row: dict[str, str], dtype: str, backward: bool) -> None:
    for seconds in _seconds(row, backward):
        queries, keys = int(row["q_seqlen"]), int(row["kv_seqlen"])
        causal = row["attn_mask"] != "no_mask"
        window = int(float(row["sliding_window_size"])) if row["sliding_window_size"] else None
        if backward and dtype == "fp8":
            # This kernel does not skip pairs outside of the window: its time grows with the square of the length
            # (0.54 ms for 2048 queries, 23 ms for 16,384), where that of bf16 grows with the length.
            window = None
        batch = int(row["batch_size"])
        kernel = attention_kernel(
            batch,
            int(row["num_q_heads"]),
            queries,
            int(row["head_dim_qk"]),
            keys=keys,
            kv_heads=int(row["num_kv_heads"]),
            value_dim=int(row["head_dim_vo"]),
            causal=causal,
            dtype=dtype,
            implementation="cudnn",
            backward=backward,
            pairs=batch * window_pairs(queries, window) if window else None,
        )
        group = f"{row['model_name']} {row['attn_mask']} {queries}"
        measured.add(kernel, seconds, group)


def _seconds(row: dict[str, str], backward: bool) -> Iterator[float]:
    """The times of a row in one direction; files of different ages have different columns."""
    if "time_ms" in row:
        wanted = "bwd" if backward else "fwd"
        if row["profile_pass"] != wanted or row["deterministic_bwd"] == "True":
            return
        milliseconds = float(row["time_ms"])
    else:
        # One file has only the deterministic backward, which is slower.
        if backward and row["deterministic_bwd"] == "True":
            return
        milliseconds = float(row["bwd_time_ms" if backward else "fwd_time_ms"])
    if math.isfinite(milliseconds):
        yield milliseconds * 1e-3
