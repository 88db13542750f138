"""Makes a pack from measurements of one GPU: models of what can be learned, and the very works that were measured.

In: timed works of one device. Out: models, times of works by `key_of`, and for each model how far off it is on shapes
it has not seen, next to what was said before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from maya.devices import Device
from maya.estimators import attention, gemm
from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.estimator import Estimator
from maya.estimators.measurements_file import Timed
from maya.estimators.pack import Model, key_of
from maya.estimators.training import FEWEST_GROUPS, Describe, Error, Size, train
from maya.estimators.work import Kind, Work

FEW_ROWS = 400
SMALL = Size(trees=60, leaves=8, rate=0.2, fewest_in_leaf=2)


@dataclass(frozen=True)
class Line:
    """What became of the measurements of one model."""

    model: str
    rows: int
    before: Error  # of what Maya said without them
    held_out: float | None  # mean error on shapes not trained on; None: too few to train on, kept as measured
    note: str = ""


@dataclass(frozen=True)
class Calibration:
    """What was learned."""

    models: dict[str, Model]
    measured: dict[int, float]
    lines: list[Line]


def calibrate(device: Device, timed: Sequence[Timed], *, source: str, licence: str, date: str) -> Calibration:
    """Learn from measurements of a device."""
    estimator = Estimator(device)
    models: dict[str, Model] = {}
    lines = []
    together: dict[str, list[Timed]] = {}
    for row in timed:
        together.setdefault(_model_name(row.work), []).append(row)
    for name, rows in sorted(together.items()):
        works = [row.work for row in rows]
        seconds = np.array([row.seconds for row in rows])
        said = np.array([estimate.ns * 1e-9 for estimate in estimator.estimate(works)])
        before = Error.of(said, seconds)
        groups = [_group(work) for work in works]
        describe = _DESCRIBE.get(works[0].kind)
        if describe is None or len(set(groups)) < FEWEST_GROUPS:
            note = "kept as measured" if describe is None else f"fewer than {FEWEST_GROUPS} shapes: kept as measured"
            lines.append(Line(name, len(rows), before, None, note))
            continue
        batch, seconds, groups = _columns(works, seconds, groups)
        models[name] = train(
            device,
            batch,
            seconds,
            groups,
            describe,
            source=source,
            licence=licence,
            date=date,
            grouped_by=_GROUPED_BY[batch.kind],
            size=SMALL if len(rows) < FEW_ROWS else None,
        )
        lines.append(Line(name, len(rows), before, models[name].about["held_out"]["mean"]))
    measured: dict[int, list[float]] = {}
    for row in timed:
        measured.setdefault(key_of(row.work), []).append(row.seconds * 1e9)
    return Calibration(models, {key: float(np.median(times)) for key, times in measured.items()}, lines)


_DESCRIBE: dict[Kind, Describe] = {Kind.GEMM: gemm.describe, Kind.ATTENTION: attention.describe}
_GROUPED_BY = {Kind.GEMM: "(n, k)", Kind.ATTENTION: "(heads, key-value heads, head dimension)"}


def _model_name(work: Work) -> str:
    if work.kind is Kind.GEMM:
        return gemm.model_name(work.dtype)
    if work.kind is Kind.ATTENTION:
        return attention.model_name(work.dtype, work.variant)
    return f"{work.kind.value}/{work.dtype}/{work.variant}"


def _group(work: Work) -> str:
    shape = work.shape
    names = ("n", "k") if work.kind is Kind.GEMM else ("heads", "kv_heads", "head_dim", "causal")
    return " ".join(f"{name}={shape.get(name, 0):g}" for name in names)


def _columns(works: list[Work], seconds: Floats, groups: list[str]) -> tuple[Batch, Floats, list[str]]:
    """One batch of works that may differ in layout: a model is of one layout, what others cost is taken off."""
    parts = list(batches(works))
    if len(parts) == 1:
        rows, batch = parts[0]
        return batch, seconds[rows] / _penalty(batch), [groups[row] for row in rows]
    order = np.concatenate([rows for rows, _ in parts])
    times = np.concatenate([seconds[rows] / _penalty(batch) for rows, batch in parts])
    first = parts[0][1]
    alike = [replace(works[row], dtype=first.dtype, variant=first.variant) for row in order]
    return next(batch for _, batch in batches(alike)), times, [groups[row] for row in order]


def _penalty(batch: Batch) -> Floats | float:
    return gemm.penalty(batch) if batch.kind is Kind.GEMM else 1.0
