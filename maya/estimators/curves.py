"""Curves: how many times longer than at full memory bandwidth a family of kernels takes, learned from measurements.

A kernel that only moves bytes takes `start + rows * row + bytes / bandwidth * slowdown`, where `row` is what a row
costs however short it is (only kernels that give each row a block have such a thing). The slowdown is piecewise linear
between knots on one axis: the logarithm of the bytes moved, or of the length of a row. What is measured is often an op
of several kernels, with what the measuring costs on top, so the curves of all families of a device and the overhead of
each source are fitted together: one sparse system of linear equations, relative errors squared, slowdowns at least 1.

In: `Observation`s. Out: `Curve`s, which a pack holds as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maya.devices import Device
from maya.estimators.batch import Batch, Floats, batches
from maya.estimators.bounds import LAUNCH_SECONDS, element_bytes
from maya.estimators.work import Kind, Work

# Kinds whose efficiency depends on the length of their rows; all others: on the bytes they move.
ROW_KINDS = frozenset({Kind.NORM, Kind.SOFTMAX})
_ROW_KNOTS = tuple(float(exponent) for exponent in range(5, 18))
_BYTES_KNOTS = (18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0)
_SMOOTHNESS = 0.03  # weight of a step between knots against a relative error
_LEANING = 0.1  # weight of a difference to another device's curve
_KINSHIP = 0.02  # weight of a difference to a related family against a relative error
# From the launch to the end of a kernel that does next to nothing: the launch and a trip to memory, or two.
_TRIP_SECONDS = 0.6e-6
_LEAST_START = {"columns": LAUNCH_SECONDS + 2 * _TRIP_SECONDS, "bytes": LAUNCH_SECONDS + _TRIP_SECONDS}
_MOST_START = {"columns": 3.0e-6, "bytes": 2.3e-6}
# What a row costs that has a block of its own, times the SMs: from the shortest rows that were measured (128 columns,
# on H200 and GB200). Where all rows are long this cannot be told from what measuring cost.
_ROW_SM_SECONDS = {"norm/layer_norm_forward": 92e-9, "norm/layer_norm_backward": 200e-9}
_ROW_PRIOR = 0.3
_MOST_ROW = 20e-9
_MOST_TURN = 3e-6
_MOST_OF_A_KIND = 40.0  # observations; more of them do not weigh more
# What measuring may have cost: nothing where a profiler timed kernels, events around them, or the host's clock.
_MOST_OVERHEAD = {"vidur": 1e-9, "profile_gpu": 1e-9, "cudnn_norms": 5e-6, "liger": 8e-6}
_MOST_OVERHEAD_OF_HOSTS = 60e-6
_MOST_SLOWDOWN = 60.0
_MOST_STEP = float(np.log(1.09))  # of the slowdown's logarithm, for twice the size


@dataclass(frozen=True)
class Curve:
    """One family on one device."""

    axis: str  # "bytes" or "columns"
    knots: tuple[float, ...]  # log2 of what is on the axis
    slowdown: tuple[float, ...]
    start_seconds: float
    row_seconds: float = 0.0
    sm_count: int = 1  # of the device it was measured on: rows are worked on side by side
    about: dict[str, Any] = field(default_factory=dict)  # source, licence, date, rows, held-out error, spread

    def seconds(self, device: Device, batch: Batch) -> Floats:
        """Times of works, the launch included."""
        at = np.log2(np.maximum(_axis(self.axis, batch), 1.0))
        slowdown = np.interp(at, self.knots, self.slowdown)
        moving = batch.bytes_moved / device.memory_bandwidth * slowdown
        rows = batch.column("turns" if batch.kind == Kind.CROSS_ENTROPY else "rows", 0.0)
        return self.start_seconds + rows * self._row_on(device, batch.kind) + moving

    def _row_on(self, device: Device, kind: Kind) -> float:
        """Seconds of a row; a turn takes the same on all devices, because it is one block that takes them."""
        return self.row_seconds if kind == Kind.CROSS_ENTROPY else self.row_seconds * self.sm_count / device.sm_count

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
    """Works that were run one after the other, and the seconds they took together."""

    works: tuple[Work, ...]
    seconds: float
    group: str  # observations of one group are trained on or held out together
    source: str  # a name; what measuring cost is assumed to be the same within it


def family_of(kind: Kind, variant: str, dtype: str) -> str:
    """What shares a curve."""
    if variant in ("strided", "transposed") and element_bytes(dtype) <= 2:
        variant += "_narrow"  # goes element by element, so that it takes as long for fewer bytes
    if kind == Kind.NORM and variant == "layer_norm_backward_parameters":
        variant = "layer_norm_backward"  # measured together only
    if kind == Kind.SOFTMAX:
        variant = variant.removeprefix("log_")  # the same kernels but for the last line
    return f"{kind.value}/{variant}"


# A family that was not measured: the one it is most like, and how many times slower it is taken to be than that.
_RELATIVES = {
    "elementwise/unrolled": ("copy/unrolled", 1.0),  # casts while it loads
    "elementwise/strided": ("elementwise/vectorized", 1.3),
    "elementwise/strided_narrow": ("elementwise/strided", 1.4),
    "elementwise/transposed": ("elementwise/strided", 1.2),  # and sectors, see memory_bound
    "elementwise/transposed_narrow": ("elementwise/strided_narrow", 1.2),
    "copy/vectorized": ("elementwise/vectorized", 1.0),
    "copy/unrolled": ("elementwise/vectorized", 1.5),
    "copy/strided": ("elementwise/strided", 1.0),
    "copy/strided_narrow": ("elementwise/strided_narrow", 1.0),
    "copy/transposed": ("elementwise/transposed", 1.0),
    "copy/transposed_narrow": ("elementwise/transposed_narrow", 1.0),
    "reduction/inner": ("elementwise/vectorized", 1.1),
    "reduction/outer": ("elementwise/vectorized", 1.25),
    "softmax/softmax_backward": ("softmax/softmax_forward", 1.0),
    "norm/layer_norm_backward": ("norm/layer_norm_forward", 1.1),
    "norm/batch_norm_inference": ("elementwise/vectorized", 1.1),
    "norm/batch_norm_forward": ("elementwise/vectorized", 1.7),  # the input is read twice
    "norm/batch_norm_backward": ("elementwise/vectorized", 1.7),
    "cross_entropy/backward": ("cross_entropy/forward", 1.0),
    "embedding/forward": ("copy/vectorized", 1.2),
    "embedding/index_select": ("copy/vectorized", 2.5),
    "embedding/backward": ("embedding/forward", 1.2),
    "triton/pointwise": ("elementwise/vectorized", 1.0),
    "triton/reduction": ("elementwise/vectorized", 1.2),
    "triton/persistent_reduction": ("elementwise/vectorized", 1.1),
}
_RELATIVES_OF_KINDS = {
    "memset": ("elementwise/vectorized", 1.0),
    "random": ("elementwise/vectorized", 1.2),
    "optimizer": ("elementwise/vectorized", 1.15),
    "index": ("elementwise/strided", 1.3),
    "embedding": ("elementwise/strided", 1.3),
    "sort": ("elementwise/strided", 1.5),
    "triton": ("elementwise/vectorized", 1.2),
    "norm": ("norm/layer_norm_forward", 1.0),
    "softmax": ("softmax/softmax_forward", 1.0),
    "reduction": ("reduction/outer", 1.0),
    "unknown": ("elementwise/strided", 1.5),
}


def relative_of(family: str) -> tuple[str, float]:
    """The family that an unmeasured one is taken to be like, and how many times slower."""
    if family in _RELATIVES:
        return _RELATIVES[family]
    relative = _RELATIVES_OF_KINDS.get(family.partition("/")[0], ("elementwise/strided", 1.3))
    return relative if relative[0] != family else ("elementwise/vectorized", 1.0)


def axis_of(kind: Kind) -> str:
    return "columns" if kind in ROW_KINDS else "bytes"


def _axis(axis: str, batch: Batch) -> Floats:
    return batch.column("columns", 1024.0) if axis == "columns" else batch.bytes_moved


def fit(
    device: Device, observations: Sequence[Observation], relatives: Mapping[str, Curve] | None = None
) -> tuple[dict[str, Curve], dict[str, float]]:
    """The curves of all families in the observations, and the overhead of each source in seconds.

    `relatives` are curves of another device, which these lean on where they have few observations.
    """
    from scipy.optimize import lsq_linear  # type: ignore[import-untyped]

    families = sorted({family_of(work.kind, work.variant, work.dtype) for seen in observations for work in seen.works})
    axes = {
        family_of(work.kind, work.variant, work.dtype): axis_of(work.kind)
        for seen in observations
        for work in seen.works
    }
    sources = sorted({seen.source for seen in observations})
    knots = {name: _ROW_KNOTS if axes[name] == "columns" else _BYTES_KNOTS for name in families}
    starts: dict[str, int] = {}
    width = 0
    for name in families:
        starts[name] = width
        width += 2 + len(knots[name])
    overheads = {name: width + i for i, name in enumerate(sources)}
    width += len(sources)

    matrix = np.zeros((len(observations), width))
    target = _weights(observations)
    for row, seen in enumerate(observations):
        for work in seen.works:
            name = family_of(work.kind, work.variant, work.dtype)
            at = starts[name]
            moved = (work.bytes_read + work.bytes_written) / device.memory_bandwidth
            along = work.shape.get("columns", 1024.0) if axes[name] == "columns" else moved * device.memory_bandwidth
            matrix[row, at] += 1.0
            matrix[row, at + 1] += _rows(work)
            for k, weight in _hats(np.log2(max(along, 1.0)), knots[name]):
                matrix[row, at + 2 + k] += moved * weight
        matrix[row, overheads[seen.source]] = 1.0
        matrix[row] *= target[row] / seen.seconds

    lower, upper = np.zeros(width), np.zeros(width)
    for name, at in overheads.items():
        upper[at] = _MOST_OVERHEAD.get(name, _MOST_OVERHEAD_OF_HOSTS)
    steps: list[Floats] = []
    wanted_of_steps: dict[int, float] = {}
    for name in families:
        at, count = starts[name], len(knots[name])
        most = _MOST_TURN if name.startswith(Kind.CROSS_ENTROPY.value) else _MOST_ROW
        lower[at : at + 2], upper[at : at + 2] = (_LEAST_START[axes[name]], 0.0), (_MOST_START[axes[name]], most)
        lower[at + 2 : at + 2 + count], upper[at + 2 : at + 2 + count] = 1.0, _MOST_SLOWDOWN
        for k in range(count - 1):
            step = np.zeros(width)
            step[at + 2 + k : at + 4 + k] = (1.0, -1.0)
            steps.append(step * _SMOOTHNESS * np.sqrt(len(observations) / count))
        if name in _ROW_SM_SECONDS:
            usual = np.zeros(width)
            usual[at + 1] = _ROW_PRIOR * device.sm_count / _ROW_SM_SECONDS[name]
            steps.append(usual)
            wanted_of_steps[len(steps) - 1] = _ROW_PRIOR
        other = relatives.get(name) if relatives else None
        if other is not None and other.knots == knots[name]:
            for k, value in enumerate(other.slowdown):
                same = np.zeros(width)
                same[at + 2 + k] = _LEANING
                steps.append(same)
                wanted_of_steps[len(steps) - 1] = _LEANING * value
        relative, factor = relative_of(name)
        if relative in families and knots[relative] == knots[name]:
            # What was only measured together with others is told apart by what is usual.
            for k in range(count):
                difference = np.zeros(width)
                difference[at + 2 + k], difference[starts[relative] + 2 + k] = 1.0, -factor
                steps.append(difference * _KINSHIP * np.sqrt(len(observations) / count))
    # Columns of seconds are tiny beside those of slowdowns: scaled, so that both are seen.
    scale = np.ones(width)
    for name in families:
        scale[starts[name]], scale[starts[name] + 1] = 1e-6, 1e-9
    for at in overheads.values():
        scale[at] = 1e-6
    system = np.vstack([matrix, *steps]) * scale
    wanted = np.concatenate([target, [wanted_of_steps.get(i, 0.0) for i in range(len(steps))]])
    found = lsq_linear(system, wanted, bounds=(lower / scale, upper / scale), tol=1e-10).x * scale

    curves = {}
    for name in families:
        at, count = starts[name], len(knots[name])
        values = tuple(float(v) for v in np.maximum(found[at + 2 : at + 2 + count], 1.0))
        start = float(found[at])
        each = float(found[at + 1]) if matrix[:, at + 1].any() else 0.0
        curves[name] = Curve(axes[name], knots[name], _without_jumps(knots[name], values), start, each, device.sm_count)
    return curves, {name: float(max(found[at], 0.0)) for name, at in overheads.items()}


def _without_jumps(knots: Sequence[float], slowdown: Sequence[float]) -> tuple[float, ...]:
    """The slowdown, changed as little as is needed for twice the size to take at most 2.2 times as long.

    Half way (of the logarithm) between lowering what comes after a jump and raising what comes before it.
    """
    lowered, raised = (np.log(np.asarray(slowdown, dtype=np.float64)) for _ in range(2))
    for k in range(len(knots) - 1):
        most = _MOST_STEP * (knots[k + 1] - knots[k])
        lowered[k + 1] = min(lowered[k + 1], lowered[k] + most)
    for k in reversed(range(len(knots) - 1)):
        most = _MOST_STEP * (knots[k + 1] - knots[k])
        raised[k] = max(raised[k], raised[k + 1] - most)
    return tuple(float(value) for value in np.exp((lowered + raised) / 2))


def _rows(work: Work) -> float:
    """What costs time by its number, not its bytes: rows that have a block each, turns of a block."""
    if work.kind == Kind.CROSS_ENTROPY:
        return work.shape.get("turns", 0.0)
    return work.shape.get("rows", 0.0) if work.kind in ROW_KINDS else 0.0


def _weights(observations: Sequence[Observation]) -> Floats:
    """Square roots of weights: a source with thousands of rows of one sort does not drown the others."""
    sorts = [(seen.source, *sorted({(w.kind, w.variant) for w in seen.works})) for seen in observations]
    counts = Counter(sorts)
    return np.array([np.sqrt(min(1.0, _MOST_OF_A_KIND / counts[sort])) for sort in sorts])


def _hats(at: float, knots: Sequence[float]) -> list[tuple[int, float]]:
    """The knots around a place, and how much of each: what linear interpolation takes."""
    if at <= knots[0]:
        return [(0, 1.0)]
    if at >= knots[-1]:
        return [(len(knots) - 1, 1.0)]
    right = int(np.searchsorted(knots, at, side="right"))
    share = (at - knots[right - 1]) / (knots[right] - knots[right - 1])
    return [(right - 1, 1.0 - share), (right, share)]


def predict(
    device: Device, observations: Sequence[Observation], curves: dict[str, Curve], overheads: dict[str, float]
) -> Floats:
    """Seconds of the observations, what measuring cost included."""
    predicted = np.array([overheads.get(seen.source, 0.0) for seen in observations])
    owners = [row for row, seen in enumerate(observations) for _ in seen.works]
    for positions, batch in batches([work for seen in observations for work in seen.works]):
        seconds = curves[family_of(batch.kind, batch.variant, batch.dtype)].seconds(device, batch)
        np.add.at(predicted, [owners[position] for position in positions.tolist()], seconds)
    return predicted
