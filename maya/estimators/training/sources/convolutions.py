"""NeuSight's convolutions: fp32 without TF32, forward, square images and windows; A100 80 GB PCIe and V100.

In: the folder of its tables. Out: measurements of one device. Rows with a large share of host time are left out.
"""

from __future__ import annotations

from pathlib import Path

from maya.estimators.features.library import convolution_kernel
from maya.estimators.training.sources import Measurements, Source
from maya.estimators.training.sources.tables import find_table, read_columns, rows_of

SOURCE = Source("sitar-lab/NeuSight @6945927", "MIT", "2026-11")
_GPUS = {"a100-80": "NVIDIA_A100_80GB_PCIe", "v100": "Tesla_V100-PCIE-32GB"}
_ABOVE_HOST = 3.0
_COLUMNS = ("Latency", "B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")


def convolutions(folder: Path, device: str) -> Measurements:
    measured = Measurements(SOURCE, "(channels, filters, window)")
    columns = read_columns(find_table(folder / "train_collect", f"conv__{_GPUS[device]}"), _COLUMNS)
    rows = [tuple(float(value) for value in row) for row in rows_of(columns)]
    shortest = min(row[0] for row in rows)
    for latency, *sizes in rows:
        batch, channels, filters, side, size, stride, padding = (int(value) for value in sizes)
        if latency < _ABOVE_HOST * shortest:
            continue
        out = (size + 2 * padding - side) // stride + 1
        if out < 1:
            continue
        kernel = convolution_kernel(
            "fp32",
            [batch, channels, size, size],
            [filters, channels, side, side],
            [batch, filters, out, out],
            stride=[stride],
            groups=1,
            variant="forward",
        )
        measured.add(kernel, latency * 1e-3, f"{channels} {filters} {side}")
    return measured
