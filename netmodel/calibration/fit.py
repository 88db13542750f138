"""Fit the parameters of a cluster to a part of its measurements, and report the error on the other part.

In: a `Cluster` and measurements. Out: a `Fit`. Least squares on the logarithm of time, so that small sizes count as
much as large ones; outliers count less (Huber); a parameter that the data does not determine keeps its value. The same
data gives the same result: there are no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from netmodel.calibration.measurements import Measurement
from netmodel.calibration.structure import NAMES, Structure, from_vector, predictions, structure_of, to_vector
from netmodel.cluster import Cluster
from netmodel.cluster.parameters import Parameters

MEGABYTE = 2**20
_OUTLIER = 0.15  # in log time; larger errors count linearly
_PRIOR = 0.02  # weight of a parameter's previous value, against one measurement's log time
_NETWORK_PRIOR = 0.3  # the same for network latencies, which few measurements show alone
_STEPS = 60
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorSummary:
    """Statistics of |predicted / measured - 1|."""

    count: int
    median: float
    p90: float

    def __str__(self) -> str:
        return f"median {self.median:.1%}, p90 {self.p90:.1%} of {self.count}" if self.count else "none"


@dataclass(frozen=True)
class Fit:
    """Fitted parameters and their errors."""

    parameters: Parameters
    fitted: tuple[str, ...]  # the parameters that the data determined
    train: tuple[Measurement, ...]
    held_out: tuple[Measurement, ...]
    train_large: ErrorSummary  # sizes of 1 MiB and more
    train_small: ErrorSummary
    held_large: ErrorSummary
    held_small: ErrorSummary


def split(measurements: Sequence[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Measurements for the fit, and held-out ones: every third size of every series, and, where an operation was
    measured with three or more group sizes on as many nodes, the whole series of the middle one."""
    ranks_of: dict[tuple[str, int, str], set[int]] = {}
    sizes_of: dict[object, set[int]] = {}
    for each in measurements:
        ranks_of.setdefault((each.operation, each.nodes, each.dtype), set()).add(each.ranks)
        sizes_of.setdefault(each.series, set()).add(each.size)
    middle = {key: sorted(ranks)[len(ranks) // 2] for key, ranks in ranks_of.items() if len(ranks) >= 3}
    kept_back = {key: set(sorted(sizes)[1::3]) for key, sizes in sizes_of.items()}
    train: list[Measurement] = []
    held_out: list[Measurement] = []
    for each in measurements:
        whole_series = middle.get((each.operation, each.nodes, each.dtype)) == each.ranks
        (held_out if whole_series or each.size in kept_back[each.series] else train).append(each)
    return train, held_out


def weights(measurements: Sequence[Measurement]) -> Floats:
    """Weights that give every octave of sizes of every series the same influence, whatever its number of points."""
    octaves = [(*each.series, max(each.size, 1).bit_length()) for each in measurements]
    counts: dict[object, int] = {}
    for octave in octaves:
        counts[octave] = counts.get(octave, 0) + 1
    return np.array([1 / counts[octave] for octave in octaves])


def fit_cluster(
    cluster: Cluster, measurements: Sequence[Measurement], *, only: Sequence[str] = (), data: str = ""
) -> Fit:
    """Fit a cluster's parameters. `only`: prefixes of the names of parameters that may change."""
    train, held_out = split(measurements)
    if len(train) < 10:
        raise ValueError(f"{len(train)} measurements to fit on; at least 10 are needed")
    structure = structure_of(cluster, train)
    start = to_vector(cluster.parameters)
    free = [name for name in structure.used() if start[NAMES.index(name)] > 0]  # zero stays zero
    free = [name for name in free if not only or any(name.startswith(beginning) for beginning in only)]
    vector = solve(structure, weights(train), start, free)
    parameters = replace(from_vector(cluster.parameters, vector), origin="fitted", data=data)
    calibrated = replace(cluster, parameters=parameters)
    train_large, train_small = errors(calibrated, train)
    held_large, held_small = errors(calibrated, held_out)
    error = f"held out, 1 MiB and more: {held_large}; below: {held_small}"
    parameters = replace(parameters, error=error)
    return Fit(parameters, tuple(free), tuple(train), tuple(held_out), train_large, train_small, held_large, held_small)


def errors(cluster: Cluster, measurements: Sequence[Measurement]) -> tuple[ErrorSummary, ErrorSummary]:
    """The errors on sizes of 1 MiB and more, and on smaller ones."""
    if not measurements:
        return summary(np.empty(0)), summary(np.empty(0))
    off = np.abs(predictions(cluster, measurements) / (1000 * np.array([each.us for each in measurements])) - 1)
    large = np.array([each.size >= MEGABYTE for each in measurements])
    return summary(off[large]), summary(off[~large])


def summary(off: Floats) -> ErrorSummary:
    if not len(off):
        return ErrorSummary(0, math.nan, math.nan)
    return ErrorSummary(len(off), float(np.median(off)), float(np.quantile(off, 0.9)))


def _log_bounds(name: str) -> tuple[float, float]:
    """Physical bounds: no engine exceeds its wire or leaves most of it unused, a NIC carries LL128's buffers much like
    Simple's, and a step is shorter than a time-out."""
    if name.endswith("efficiency"):
        return math.log(0.85 if name == "ll128.network_efficiency" else 0.5), 0.0
    if name.endswith("step_ns"):
        return -math.inf, math.log(100_000)
    return -math.inf, math.inf


def solve(structure: Structure, weight: Floats, start: Floats, free: Sequence[str]) -> Floats:
    """Levenberg-Marquardt on the logarithms of the free parameters, with Huber's weights."""
    places = np.array([NAMES.index(name) for name in free])
    base = np.log(np.maximum(start, 1e-9))
    least, most = np.array([_log_bounds(name) for name in free]).T
    prior = np.array([_NETWORK_PRIOR if "network_step" in name else _PRIOR for name in free]) ** 2
    log_measured = np.log(structure.measured_ns)

    def residuals(point: Floats) -> Floats:
        vector = base.copy()
        vector[places] = point
        result: Floats = np.log(structure.predicted(np.exp(vector))) - log_measured
        return result

    def cost(off: Floats, point: Floats) -> float:
        size = np.abs(off)
        robust = np.where(size <= _OUTLIER, 0.5 * off**2, _OUTLIER * (size - 0.5 * _OUTLIER))
        return float((weight * robust).sum() + 0.5 * (prior * (point - base[places]) ** 2).sum())

    point = np.clip(base[places], least, most)
    off = residuals(point)
    now, damping = cost(off, point), 1e-2
    for _ in range(_STEPS):
        slope = np.stack([(residuals(point + step) - off) / 1e-4 for step in 1e-4 * np.eye(len(point))], axis=1)
        pull = weight * np.minimum(1.0, _OUTLIER / np.maximum(np.abs(off), 1e-12))
        normal = slope.T @ (pull[:, None] * slope) + np.diag(prior)
        gradient = slope.T @ (pull * off) + prior * (point - base[places])
        for _ in range(12):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = np.clip(point + np.clip(step, -1.0, 1.0), least, most)
            trial_off = residuals(trial)
            trial_cost = cost(trial_off, trial)
            if trial_cost < now:
                break
            damping *= 4
        else:
            break
        done = now - trial_cost < 1e-9 * now
        point, off, now, damping = trial, trial_off, trial_cost, max(damping / 3, 1e-9)
        if done:
            break
    vector = base.copy()
    vector[places] = point
    result: Floats = np.exp(vector)
    result[start == 0] = 0.0
    return result
