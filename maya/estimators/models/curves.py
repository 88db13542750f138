"""Curves: how many times longer than at full memory bandwidth a family of kernels takes, learned from measurements.

A memory-bound kernel takes `start + rows * row + bytes / bandwidth * slowdown`, where `row` is the minimum cost of a
row (only softmax of long rows has one). For kernels with one block per row, bytes are the traffic on the memory bus,
and there is a minimum time for waits (row_traffic.py). The slowdown is piecewise linear between knots on one axis
(`ClassTraits.curve_axis`). Many measurements are of ops with several kernels, plus a measurement overhead, so one
system of linear equations fits the curves of all families of an architecture and the overhead of each source: relative
errors squared, slowdowns at least 1. Devices of one architecture share their curves, because they have the same SMs
with more or less bandwidth. So a device with more bandwidth is never the slower one, and few measurements of one device
do not outweigh many of another.

In: `Observation`s. Out: `Curve`s, which a pack holds as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.devices import Device
from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.kernel import CLASS_TRAITS, Kernel, KernelClass
from maya.estimators.models.bounds import LAUNCH_SECONDS
from maya.estimators.models.families import family_of, similar_family
from maya.estimators.models.row_traffic import chain, residence, traffic
from maya.util.extras import needs

# Knots by axis, as base-2 logarithms: of the bytes moved, of the columns, of `residence` (row_traffic.py).
_KNOTS = {
    "bytes": (18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0),
    "columns": tuple(float(exponent) for exponent in range(5, 18)),
    "residence": (-2.0, -1.0, 0.0, 1.0, 2.0),
}
_SMOOTHNESS = 0.3  # weight of a step between knots against a relative error
_LEANING = 0.1  # weight of a difference to another architecture's curve
_SIMILARITY = 0.02  # weight of a difference to a related family against a relative error
# Duration of a nearly empty kernel: the launch and one memory access; two for kernels over rows.
TRIP_SECONDS = 0.6e-6
_STARTS = {"bytes": (LAUNCH_SECONDS + TRIP_SECONDS, 2.3e-6)}
_STARTS_OF_ROWS = (LAUNCH_SECONDS + 2 * TRIP_SECONDS, 3.0e-6)
_MOST_ROW = 20e-9
_ROWS_IN_REGISTERS = 1024  # columns
_MOST_TURN = 2 * TRIP_SECONDS  # two dependent accesses: the index, then the element; turns may overlap
_MOST_OF_A_KIND = 40.0  # observations; further ones add no weight
# Largest overhead of a measurement: none where a profiler timed kernels; else CUDA events, or the host's clock.
_MOST_OVERHEAD = {"vidur": 1e-9, "profile_gpu": 1e-9, "cudnn_norms": 5e-7, "liger": 8e-6}
_MOST_OVERHEAD_OF_HOSTS = 60e-6
_MOST_SLOWDOWN = 60.0
_MOST_STEP = float(np.log(1.09))  # change of the slowdown's logarithm per doubling of the size

_BY_THE_CHAIN = 1.4  # times the memory time at full bandwidth: a longer chain hides the memory time


@dataclass(frozen=True)
class Curve:
    """One family on one device."""

    axis: str  # `curve_axis` of the class
    knots: tuple[float, ...]  # log2 of what is on the axis
    slowdown: tuple[float, ...]
    start_seconds: float
    row_seconds: float = 0.0
    sm_count: int = 1  # of the device it was measured on: rows are worked on side by side
    about: dict[str, Any] = field(default_factory=dict)  # source, licence, date, rows, held-out error, spread

    def seconds(self, device: Device, batch: Batch) -> Floats:
        """Times of kernels, including the launch."""
        slowdown = np.interp(_along(self.axis, device, batch), self.knots, self.slowdown)
        # What is still in a cache spares waiting, but counts as bytes that are moved.
        memory = np.maximum(traffic(device, batch) * slowdown, batch.bytes_moved) / device.memory_bandwidth
        seconds = self.start_seconds + _rows(batch) * self._row_on(device, batch.kernel_class) + memory
        return np.maximum(seconds, self.start_seconds + chain(device, batch))

    def _row_on(self, device: Device, kernel_class: KernelClass) -> float:
        """Seconds of a row; a turn takes the same on all devices, because it is one block that takes them."""
        return (
            self.row_seconds
            if kernel_class == KernelClass.CROSS_ENTROPY
            else self.row_seconds * self.sm_count / device.sm_count
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "axis": self.axis,
            "knots": list(self.knots),
            "slowdown": [round(value, 4) for value in self.slowdown],
            "start_ns": round(self.start_seconds * 1e9),
            "row_ns": round(self.row_seconds * 1e9, 4),
            "sm_count": self.sm_count,
            "about": self.about,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Curve:
        knots, slowdown = (tuple(float(x) for x in value[key]) for key in ("knots", "slowdown"))
        start, row = value["start_ns"] * 1e-9, value.get("row_ns", 0.0) * 1e-9
        count = int(value.get("sm_count", 1))
        return cls(
            str(value["axis"]), knots, _without_jumps(knots, slowdown), start, row, count, dict(value.get("about", {}))
        )


@dataclass(frozen=True)
class Observation:
    """Kernels that ran one after the other, and their total seconds."""

    kernels: tuple[Kernel, ...]
    seconds: float
    group: str  # all observations of one group are in the training set, or all are held out
    source: str  # a name; what measuring cost is assumed to be the same within it, on one device
    device: Device


def _along(axis: str, device: Device, batch: Batch) -> Floats:
    """The logarithm of the kernels' positions on an axis."""
    if axis == "columns":
        along = np.maximum(batch.column("columns", 1024.0), 1.0)
    elif axis == "residence":
        along = np.maximum(residence(device, batch), 2.0**-20)
    else:
        along = np.maximum(batch.bytes_moved, 1.0)
    return np.log2(along)


def fit(
    observations: Sequence[Observation], similar_curves: Mapping[str, Curve] | None = None
) -> tuple[dict[str, Curve], dict[tuple[str, str], float]]:
    """The curves of all families in the observations, and the overhead of each (device, source) in seconds.

    The observations are of devices of one architecture. `similar_curves` are those of another architecture, to which
    families with few observations are drawn.
    """
    with needs("train", "Learning kernel times"):
        from scipy.optimize import lsq_linear  # type: ignore[import-untyped]

    sm_count = observations[0].device.sm_count
    axes = {
        family_of(kernel.kernel_class, kernel.variant, kernel.dtype): CLASS_TRAITS[kernel.kernel_class].curve_axis
        for seen in observations
        for kernel in seen.kernels
    }
    families = sorted(axes)
    knots = {name: _KNOTS[axes[name]] for name in families}
    starts: dict[str, int] = {}
    width = 0
    for name in families:
        starts[name] = width
        width += 2 + len(knots[name])
    overheads = {name: width + i for i, name in enumerate(sorted({overhead_of(seen) for seen in observations}))}
    width += len(overheads)

    matrix = np.zeros((len(observations), width))
    target = _weights(observations)
    measured = np.array([seen.seconds for seen in observations])
    for device, rows, batch in _by_device(observations):
        name = family_of(batch.kernel_class, batch.variant, batch.dtype)
        at = starts[name]
        np.add.at(matrix[:, at], rows, 1.0)
        np.add.at(matrix[:, at + 1], rows, _rows(batch) * sm_count / device.sm_count)
        places = _along(axes[name], device, batch)
        memory = traffic(device, batch) / device.memory_bandwidth
        for k, hat in enumerate(np.eye(len(knots[name]))):
            np.add.at(matrix[:, at + 2 + k], rows, memory * np.interp(places, knots[name], hat))
        target[rows[chain(device, batch) > _BY_THE_CHAIN * memory]] = 0.0
    for row, seen in enumerate(observations):
        matrix[row, overheads[overhead_of(seen)]] = 1.0
    matrix *= (target / measured)[:, None]

    lower, upper = np.zeros(width), np.zeros(width)
    for (_, source), at in overheads.items():
        upper[at] = _MOST_OVERHEAD.get(source, _MOST_OVERHEAD_OF_HOSTS)
    # Weighted like the observations of a family, so that neither outweighs the other.
    heft = {name: np.sqrt((target[matrix[:, at] > 0] ** 2).sum() / len(knots[name])) for name, at in starts.items()}
    steps: list[Floats] = []
    wanted_of_steps: dict[int, float] = {}
    for name in families:
        at, count = starts[name], len(knots[name])
        most = _MOST_TURN if name.startswith(KernelClass.CROSS_ENTROPY.value) else _MOST_ROW
        least_start, most_start = _STARTS.get(axes[name], _STARTS_OF_ROWS)
        lower[at : at + 2], upper[at : at + 2] = (least_start, 0.0), (most_start, most)
        lower[at + 2 : at + 2 + count], upper[at + 2 : at + 2 + count] = 1.0, _MOST_SLOWDOWN
        for k in range(count - 1):
            step = np.zeros(width)
            step[at + 2 + k : at + 4 + k] = (1.0, -1.0)
            steps.append(step * _SMOOTHNESS * heft[name])
        other = similar_curves.get(name) if similar_curves else None
        if other is not None and other.knots == knots[name]:
            for k, value in enumerate(other.slowdown):
                same = np.zeros(width)
                same[at + 2 + k] = _LEANING
                steps.append(same)
                wanted_of_steps[len(steps) - 1] = _LEANING * value
        similar, factor = similar_family(name)
        if similar in families and knots[similar] == knots[name]:
            # Families that were only measured together are separated by the assumed factor.
            for k in range(count):
                difference = np.zeros(width)
                difference[at + 2 + k], difference[starts[similar] + 2 + k] = 1.0, -factor
                steps.append(difference * _SIMILARITY * heft[name])
    # Columns of seconds are tiny beside those of slowdowns; scaling makes both count.
    scale = np.ones(width)
    for name in families:
        scale[starts[name]], scale[starts[name] + 1] = 1e-6, 1e-9
    for at in overheads.values():
        scale[at] = 1e-6
    system = np.vstack([matrix, *steps]) * scale
    wanted = np.concatenate([target, [wanted_of_steps.get(i, 0.0) for i in range(len(steps))]])
    rotation, square = np.linalg.qr(system)  # the same least squares with as few rows as there are columns
    found = lsq_linear(square, rotation.T @ wanted, bounds=(lower / scale, upper / scale), tol=1e-10).x * scale

    curves = {}
    for name in families:
        at, count = starts[name], len(knots[name])
        values = tuple(float(v) for v in np.maximum(found[at + 2 : at + 2 + count], 1.0))
        start = float(found[at])
        each = float(found[at + 1]) if matrix[:, at + 1].any() else 0.0
        curves[name] = Curve(axes[name], knots[name], _without_jumps(knots[name], values), start, each, sm_count)
    return curves, {name: float(max(found[at], 0.0)) for name, at in overheads.items()}


def overhead_of(seen: Observation) -> tuple[str, str]:
    """The key of observations that share an overhead."""
    return seen.device.key, seen.source


def _without_jumps(knots: Sequence[float], slowdown: Sequence[float]) -> tuple[float, ...]:
    """The slowdown with jumps removed: a doubled size takes at most 2.2 times as long.

    The result is half way (in the logarithm) between lowering the side after a jump and raising the side before it.
    """
    lowered, raised = (np.log(np.asarray(slowdown, dtype=np.float64)) for _ in range(2))
    for k in range(len(knots) - 1):
        most = _MOST_STEP * (knots[k + 1] - knots[k])
        lowered[k + 1] = min(lowered[k + 1], lowered[k] + most)
    for k in reversed(range(len(knots) - 1)):
        most = _MOST_STEP * (knots[k + 1] - knots[k])
        raised[k] = max(raised[k], raised[k + 1] - most)
    return tuple(float(value) for value in np.exp((lowered + raised) / 2))


def _rows(batch: Batch) -> Floats:
    """The number of items with a fixed cost each: rows with a block each, or turns of a block."""
    if batch.kernel_class is KernelClass.CROSS_ENTROPY:
        return batch.column("turns", 0.0)
    if batch.kernel_class is KernelClass.SOFTMAX:  # shorter rows share a block
        return np.where(batch.column("columns", 0.0) > _ROWS_IN_REGISTERS, batch.column("rows", 0.0), 0.0)
    return np.zeros(len(batch))


def _weights(observations: Sequence[Observation]) -> Floats:
    """Square roots of weights, so that a source with thousands of similar rows does not outweigh the others."""
    sorts = [
        (seen.source, *sorted({(kernel.kernel_class, kernel.variant) for kernel in seen.kernels}))
        for seen in observations
    ]
    counts = Counter(sorts)
    return np.array([np.sqrt(min(1.0, _MOST_OF_A_KIND / counts[sort])) for sort in sorts])


def _by_device(observations: Sequence[Observation]) -> Iterator[tuple[Device, npt.NDArray[np.intp], Batch]]:
    """The kernels of all observations as batches of one device each, with the observation of each kernel."""
    for device in {seen.device.key: seen.device for seen in observations}.values():
        owned = [
            (row, kernel)
            for row, seen in enumerate(observations)
            if seen.device.key == device.key
            for kernel in seen.kernels
        ]
        owners = np.array([row for row, _ in owned], dtype=np.intp)
        for positions, batch in batches([kernel for _, kernel in owned]):
            yield device, owners[positions], batch


def predict(
    observations: Sequence[Observation], curves: dict[str, Curve], overheads: dict[tuple[str, str], float]
) -> Floats:
    """Predicted seconds of the observations, including the measurement overhead."""
    predicted = np.array([overheads.get(overhead_of(seen), 0.0) for seen in observations])
    for device, rows, batch in _by_device(observations):
        curve = curves[family_of(batch.kernel_class, batch.variant, batch.dtype)]
        np.add.at(predicted, rows, curve.seconds(device, batch))
    return predicted
