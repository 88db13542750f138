"""Measurements of a user's own GPU: the CSV files that `scripts/profile_gpu.py` writes.

In: files with one row per timed kernel. Out: kernels and their seconds. Columns that are read:

    kind           gemm, attention, elementwise, ... (the values of `KernelClass`)
    variant        gemm: the layout (TN, NN, NT); attention: implementation and direction (flash_forward, ...); ...
    dtype          bf16, fp16, tf32, fp32, fp64, fp8, ...
    shape          the dimensions of the kernel class: m=4096 n=4096 k=4096 batch=1
    flops          FLOPs; may be left out where m, n and k determine them
    bytes_read     each input once
    bytes_written  each output once
    time_us        microseconds

Other columns are ignored, except that `device` is compared with the GPU that the user names.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from maya.estimators.kernel import Kernel, KernelClass

REQUIRED = ("kind", "variant", "dtype", "shape", "bytes_read", "bytes_written", "time_us")


class MeasurementsError(ValueError):
    """A file of measurements is invalid."""


@dataclass(frozen=True)
class Timed:
    """One row."""

    kernel: Kernel
    seconds: float
    device: str  # CUDA's name of the GPU; empty if the file has none


def read_measurements(path: Path) -> list[Timed]:
    """All rows of a file."""
    try:
        with path.open(newline="") as stream:
            rows = csv.DictReader(stream)
            missing = [name for name in REQUIRED if name not in (rows.fieldnames or ())]
            if missing:
                raise MeasurementsError(
                    f"{path}: no column {', '.join(missing)}; expected a file that scripts/profile_gpu.py wrote, "
                    f"with the columns {', '.join(REQUIRED)}"
                )
            timed = [_timed(row, f"{path}, line {rows.line_num}") for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementsError(f"{path}: cannot be read as CSV: {error}") from error
    if not timed:
        raise MeasurementsError(f"{path}: no measurements in it; let scripts/profile_gpu.py run for longer")
    return timed


def _timed(row: dict[str, str], where: str) -> Timed:
    try:
        kernel_class = KernelClass(row["kind"])
    except ValueError:
        known = ", ".join(each.value for each in KernelClass)
        raise MeasurementsError(f"{where}: unknown kind {row['kind']!r}; known are: {known}") from None
    shape = _shape(row["shape"] or "", where)
    seconds = _number(row, "time_us", where) * 1e-6
    if seconds <= 0:
        raise MeasurementsError(f"{where}: time_us is {row['time_us']}; a time above zero is expected")
    flops = _number(row, "flops", where) if row.get("flops") else 0.0
    if not flops and kernel_class is KernelClass.GEMM:
        flops = 2.0 * math.prod(shape.get(name, 1.0) for name in ("m", "n", "k", "batch"))
    kernel = Kernel(
        kernel_class=kernel_class,
        dtype=row["dtype"],
        flops=flops,
        bytes_read=_number(row, "bytes_read", where),
        bytes_written=_number(row, "bytes_written", where),
        shape=shape,
        variant=row["variant"] or "",
    )
    _check_shape(kernel, where)
    return Timed(kernel, seconds, row.get("device") or "")


def _shape(text: str, where: str) -> dict[str, float]:
    shape = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        try:
            if not equals:
                raise ValueError
            shape[name] = float(value)
        except ValueError:
            raise MeasurementsError(f"{where}: {part!r} in shape; expected name=number, e.g. m=4096 n=4096") from None
    return shape


def _number(row: dict[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise MeasurementsError(f"{where}: {name} is {row[name]!r}; a number is expected")
    return value


_NEEDED = {KernelClass.GEMM: ("m", "n", "k"), KernelClass.ATTENTION: ("batch", "heads", "queries", "head_dim")}


def _check_shape(kernel: Kernel, where: str) -> None:
    missing = [name for name in _NEEDED.get(kernel.kernel_class, ()) if not kernel.shape.get(name, 0.0) > 0]
    if missing:
        raise MeasurementsError(f"{where}: shape has no {', '.join(missing)}, which {kernel.kernel_class.value} needs")
