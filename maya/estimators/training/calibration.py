"""Make a pack from measurements of one GPU: models where there are enough measurements, and the measured times.

In: timed kernels of one device. Out: models of GEMMs and attention, curves of memory-bound kernels, times of kernels by
`key_of`; and the held-out error of each model and curve, next to the error of Maya's estimates without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.estimator import Estimator
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.models import attention, gemm, memory_bound
from maya.estimators.models.curves import Observation, fit
from maya.estimators.models.families import family_of
from maya.estimators.pack import Describe, Model, key_of
from maya.estimators.training.curve_training import hold_out
from maya.estimators.training.measurements_file import Timed
from maya.estimators.training.model_training import FEWEST_GROUPS, Error, Size, train

FEW_ROWS = 400
SMALL = Size(trees=60, leaves=8, rate=0.2, fewest_in_leaf=2)


@dataclass(frozen=True)
class Line:
    """The result for the measurements of one model."""

    model: str
    rows: int
    before: Error  # of Maya's estimates without them
    held_out: float | None  # mean error on held-out shapes; None: too few to train on, kept as measured times
    note: str = ""


@dataclass(frozen=True)
class Calibration:
    """The contents of a new pack, and the errors of its models."""

    models: dict[str, Model]
    curves: dict[str, dict[str, Any]]
    measured: dict[int, float]
    lines: list[Line]


def calibrate(device: Device, timed: Sequence[Timed], *, source: str, licence: str, date: str) -> Calibration:
    """Learn from measurements of a device, which are of short bursts."""
    device = device.in_bursts
    origin = {"source": source, "licence": licence, "date": date}
    rows_by_model: dict[str, list[Timed]] = {}
    for row in timed:
        rows_by_model.setdefault(_name(row.kernel), []).append(row)
    estimator = Estimator(device)
    before = {name: _error(estimator, rows) for name, rows in rows_by_model.items()}
    models: dict[str, Model] = {}
    lines = []
    for name, rows in sorted(rows_by_model.items()):
        kernel_class = rows[0].kernel.kernel_class
        if kernel_class in _DESCRIBE and len({_group(row.kernel) for row in rows}) >= FEWEST_GROUPS:
            models[name] = _model(device, rows, origin)
            lines.append(Line(name, len(rows), before[name], models[name].about["held_out"]["mean"]))
        elif kernel_class in _DESCRIBE:
            note = f"fewer than {FEWEST_GROUPS} shapes: kept as measured"
            lines.append(Line(name, len(rows), before[name], None, note))
    memory_bound_rows = [row for row in timed if row.kernel.kernel_class in memory_bound.CLASSES]
    curves = _curves(device, memory_bound_rows, origin)
    for name, rows in sorted(rows_by_model.items()):
        if name in curves:
            held_out = curves[name]["about"].get("held_out")
            lines.append(Line(name, len(rows), before[name], held_out["mean"] if held_out else None))
        elif rows[0].kernel.kernel_class not in _DESCRIBE:
            lines.append(Line(name, len(rows), before[name], None, "kept as measured"))
    times: dict[int, list[float]] = {}
    for row in timed:
        times.setdefault(key_of(row.kernel), []).append(row.seconds * 1e9)
    measured = {key: float(np.median(values)) for key, values in times.items()}
    return Calibration(models, curves, measured, lines)


def _error(estimator: Estimator, rows: Sequence[Timed]) -> Error:
    said = np.array([estimate.ns * 1e-9 for estimate in estimator.estimate([row.kernel for row in rows])])
    return Error.of(said, np.array([row.seconds for row in rows]))


def _model(device: Device, rows: Sequence[Timed], origin: dict[str, str]) -> Model:
    """A model of GEMMs, or of one implementation of attention."""
    kernels = [row.kernel for row in rows]
    seconds = np.array([row.seconds for row in rows])
    batch, seconds, groups = _columns(kernels, seconds, [_group(kernel) for kernel in kernels])
    size = SMALL if len(rows) < FEW_ROWS else None
    describe, grouped_by = _DESCRIBE[batch.kernel_class], _GROUPED_BY[batch.kernel_class]
    return train(device, batch, seconds, groups, describe, grouped_by=grouped_by, size=size, **origin)


def _curves(device: Device, rows: Sequence[Timed], origin: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Curves of memory-bound kernels, in the form of a pack."""
    counts = Counter(_name(row.kernel) for row in rows)
    seen = [
        Observation((row.kernel,), row.seconds, _size(row.kernel), _PROFILER, device)
        for row in rows
        if counts[_name(row.kernel)] >= _FEWEST_OF_A_CURVE
    ]
    if not seen:
        return {}
    fitted, _ = fit(seen)
    held_out = hold_out(seen)
    described = {}
    for family, curve in sorted(fitted.items()):
        about: dict[str, Any] = {**origin, "rows": counts[family], "grouped_by": "size", "spread": 0.15}
        chosen = held_out.rows_of(family) if held_out.observations else np.zeros(0, dtype=bool)
        error = held_out.error(chosen)
        if error is not None:
            residual = np.log(held_out.predicted[chosen] / held_out.measured[chosen])
            about.update(held_out=vars(error), spread=round(float(np.sqrt(np.mean(residual**2))), 4))
        described[family] = replace(curve, about=about).as_json()
    return described


_PROFILER = "profile_gpu"
_FEWEST_OF_A_CURVE = 3


def _size(kernel: Kernel) -> str:
    """The group of a kernel for holding out: rows of one length, or one number of bytes."""
    return f"{kernel.shape.get('columns', kernel.bytes_read + kernel.bytes_written):.4g}"


_DESCRIBE: dict[KernelClass, Describe] = {KernelClass.GEMM: gemm.describe, KernelClass.ATTENTION: attention.describe}
_GROUPED_BY = {KernelClass.GEMM: "(n, k)", KernelClass.ATTENTION: "(heads, key-value heads, head dimension)"}


def _name(kernel: Kernel) -> str:
    """The model of a kernel, or the family of its curve."""
    if kernel.kernel_class is KernelClass.GEMM:
        return gemm.model_name(kernel.dtype)
    if kernel.kernel_class is KernelClass.ATTENTION:
        return attention.model_name(kernel.dtype, kernel.variant)
    return family_of(kernel.kernel_class, kernel.variant, kernel.dtype)


def _group(kernel: Kernel) -> str:
    shape = kernel.shape
    names = ("n", "k") if kernel.kernel_class is KernelClass.GEMM else ("heads", "kv_heads", "head_dim", "causal")
    return " ".join(f"{name}={shape.get(name, 0):g}" for name in names)


def _columns(kernels: list[Kernel], seconds: Floats, groups: list[str]) -> tuple[Batch, Floats, list[str]]:
    """One batch of kernels that may differ in layout: a model has one layout, and the penalty of others is divided
    out."""
    parts = list(batches(kernels))
    if len(parts) == 1:
        rows, batch = parts[0]
        return batch, seconds[rows] / _penalty(batch), [groups[row] for row in rows]
    order = np.concatenate([rows for rows, _ in parts])
    times = np.concatenate([seconds[rows] / _penalty(batch) for rows, batch in parts])
    first = parts[0][1]
    alike = [replace(kernels[row], dtype=first.dtype, variant=first.variant) for row in order]
    return next(batch for _, batch in batches(alike)), times, [groups[row] for row in order]


def _penalty(batch: Batch) -> Floats | float:
    return gemm.penalty(batch) if batch.kernel_class is KernelClass.GEMM else 1.0
