"""DeepBench's V100 results: convolutions and recurrent layers, forward and both backwards, fp32 and mixed precision.

In: the folder of its CSV dumps. Out: kernels with their seconds. Recurrent layers skip the GEMM with the input, so only
the GEMMs with the hidden state count.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from maya.estimators.features.library import convolution_kernel
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.training.sources import Measurements, Source

SOURCE = Source("baidu-research/DeepBench @da81ba7", "Apache-2.0", "2026-11")
FILES = {"fp32": "V100__Results_FP32.csv", "fp16": "V100__Results__FP16_ip_Mixed_math.csv"}
DIRECTIONS = ("forward", "dgrad", "wgrad")


@dataclass(frozen=True)
class Recurrent:
    """A measured recurrent layer."""

    kernel: Kernel
    seconds: float
    group: str


def convolutions(folder: Path, dtype: str, direction: str) -> Measurements:
    """Convolutions in one direction; dtype "fp16" has fp16 inputs and fp32 sums."""
    measured = Measurements(SOURCE, "(channels, filters, window)")
    column = 13 + DIRECTIONS.index(direction)
    for row in _section(folder, dtype, "Convolution"):
        try:
            width, height, channels, batch, filters, right, down = (int(value) for value in row[2:9])
            pad_w, pad_h, stride_w, stride_h = (int(value) for value in row[9:13])
            seconds = float(row[column]) * 1e-3
        except ValueError:
            continue  # an absent measurement, or the line of headings
        out = [(height + 2 * pad_h - down) // stride_h + 1, (width + 2 * pad_w - right) // stride_w + 1]
        kernel = convolution_kernel(
            dtype,
            [batch, channels, height, width],
            [filters, channels, down, right],
            [batch, filters, *out],
            stride=[stride_h, stride_w],
            groups=1,
            variant=direction,
        )
        measured.add(kernel, seconds, f"{channels} {filters} {right}x{down}")
    return measured


def recurrent(folder: Path, dtype: str) -> list[Recurrent]:
    """Recurrent layers of all cells and directions."""
    found = []
    for cell, gates in (("Vanilla", 1), ("LSTM", 4), ("GRU", 3)):
        for row in _section(folder, dtype, f"Recurrent Layers - {cell}"):
            try:
                hidden, batch, steps = (int(value) for value in row[2:5])
                times = [float(value) * 1e-3 for value in row[6:9]]
            except ValueError:
                continue
            for variant, seconds in zip(("forward", "backward_data", "backward_weights"), times, strict=True):
                kernel = recurrent_kernel(dtype, hidden, batch, steps, gates, variant)
                found.append(Recurrent(kernel, seconds, f"{cell} {hidden}"))
    return found


def recurrent_kernel(dtype: str, hidden: int, batch: int, steps: int, gates: int, variant: str) -> Kernel:
    """A layer without the GEMM of its input."""
    size = 2 if dtype == "fp16" else 4
    weights = float(gates * hidden * hidden)
    moved = float(steps * batch * hidden * (1 + gates) * size)
    shape = {"batch": batch, "steps": steps, "hidden": hidden, "layers": 1.0, "gates": gates}
    flops = 2.0 * weights * batch * steps
    return Kernel(
        KernelClass.RNN, dtype, flops, moved, weights * size, {k: float(v) for k, v in shape.items()}, variant
    )


def _section(folder: Path, dtype: str, title: str) -> Iterator[list[str]]:
    """The rows of one table: from its title to the next line with text in the first column."""
    path = folder / FILES[dtype]
    inside = False
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        for row in csv.reader(stream):
            if row and row[0].strip():
                inside = row[0].strip() == title
            elif inside:
                yield row
