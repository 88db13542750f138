"""DeepBench's GEMMs on V100: 16-bit inputs, 32-bit accumulation.

In: the folder of its CSV files, which are dumps of spreadsheets. Out: measurements. Times are in milliseconds, matrices
are column-major, and the benchmark pads dimensions to multiples of 8.
"""

from __future__ import annotations

import csv
from pathlib import Path

from maya.estimators.models.gemm import gemm_kernel
from maya.estimators.training.sources import Measurements, Source

SOURCE = Source("baidu-research/DeepBench @da81ba7", "Apache-2.0", "2026-11")
_FILE = "V100__Results__FP16_ip_Mixed_math.csv"
_SECTION = "Dense Matrix Multiplication"


def gemm(folder: Path) -> Measurements:
    """fp16 GEMMs."""
    path = folder / _FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    measured = Measurements(SOURCE, "(n, k)")
    with path.open(newline="") as stream:
        inside = False
        for row in csv.reader(stream):
            if row and row[0]:
                inside = row[0] == _SECTION
            elif inside and len(row) > 8 and row[2].isdigit():
                columns, rows, depth = (-(-int(value) // 8) * 8 for value in row[2:5])
                kernel = gemm_kernel(rows, columns, depth, dtype="fp16")
                measured.add(kernel, float(row[8]) * 1e-3, f"n={columns} k={depth}")
    return measured
