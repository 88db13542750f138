"""NeuSight's fp32 GEMMs (without TF32), single and batched, of PyTorch 2.1.

In: the folder of its CSV files. Out: measurements of one device. Latencies are in milliseconds and contain the host's
call overhead (28 to 61 us, from the shortest call), which is subtracted. GEMMs that are short compared to it are left
out: the remainder of their latencies would mostly be the variation of the overhead.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from maya.devices import load_device
from maya.estimators.models.bounds import roofline
from maya.estimators.models.gemm import gemm_kernel
from maya.estimators.training.sources import Measurements, Source
from maya.estimators.training.sources.tables import find_table, read_columns, rows_of

SOURCE = Source("sitar-lab/NeuSight @6945927", "MIT", "2026-11")

# The measured cards are PCIe ones with the same chip.
_CARDS = {"v100": "Tesla_V100-PCIE-32GB", "a100-40": "NVIDIA_A100-PCIE-40GB"}
_SMALLEST_GEMM = 3e-6
_LEAST_OF_A_CALL = 0.5  # smallest bound of a GEMM, relative to the subtracted overhead


def gemm(folder: Path, device: str) -> Measurements:
    """fp32 GEMMs of one device."""
    measured = Measurements(SOURCE, "(n, k)")
    known = load_device(device)
    for operation in ("linear", "bmm"):
        path = find_table(folder / "train_collect", f"{operation}__{_CARDS[device]}")
        rows = [
            (float(latency) * 1e-3, int(b), int(m), int(n), int(k))
            for latency, b, m, n, k in rows_of(read_columns(path, ("Latency", "B", "M", "N", "K")))
        ]
        calling = float(np.percentile([row[0] for row in rows], 0.5)) - _SMALLEST_GEMM
        for seconds, b, m, n, k in rows:
            kernel = gemm_kernel(m, n, k, batch=b, dtype="fp32")
            moved = np.array([kernel.bytes_read + kernel.bytes_written])
            if roofline(known, "fp32", np.array([kernel.flops]), moved)[0] >= _LEAST_OF_A_CALL * calling:
                measured.add(kernel, max(seconds - calling, _SMALLEST_GEMM), f"n={n} k={k}")
    return measured
