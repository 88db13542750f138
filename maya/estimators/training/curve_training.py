"""Train the curves of a device, with the error on held-out sizes.

In: `Observation`s of all devices of its architecture, which share their curves. Out: curves with their source, licence,
date and held-out error. The groups (row lengths, hidden sizes) are divided into five parts; each part is predicted by
curves that were fitted to the other four.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from maya.devices import Device, load_device
from maya.estimators.batch import Floats
from maya.estimators.models.curves import Curve, Observation, fit, overhead_of, predict
from maya.estimators.models.families import family_of
from maya.estimators.training.model_training import FOLDS, Error
from maya.estimators.training.sources import memory_bound_kernels

MEASURED = ("a100-40", "a100-80", "a40", "gb200", "h100", "h200", "v100")
# A device, and one of another architecture to which its curves are drawn where observations are few.
_LEANS_ON = {
    "h100": "a100-80",
    "h200": "a100-80",
    "gb200": "h200",
    "a100-80": "v100",
    "a100-40": "v100",
    "v100": "a100-80",
}
LARGE = 1e6  # bytes: above it, the launch takes less than half of a kernel's time


@dataclass(frozen=True)
class HeldOutRows:
    """Predictions of observations by curves that were fitted without their sizes."""

    observations: list[Observation]
    predicted: Floats
    measured: Floats

    def error(self, chosen: npt.NDArray[np.bool_]) -> Error | None:
        return Error.of(self.predicted[chosen], self.measured[chosen]) if chosen.any() else None

    def rows_of(self, name: str) -> npt.NDArray[np.bool_]:
        """The observations of one family, or of families with this prefix."""
        return np.array([name in families_of(seen) for seen in self.observations])

    def on(self, device: Device) -> HeldOutRows:
        """The rows of one device."""
        chosen = np.array([seen.device.key == device.key for seen in self.observations], dtype=bool)
        kept = [seen for seen in self.observations if seen.device.key == device.key]
        return HeldOutRows(kept, self.predicted[chosen], self.measured[chosen])

    def large(self) -> npt.NDArray[np.bool_]:
        return np.array([_moved(seen) / len(seen.kernels) > LARGE for seen in self.observations])


def families_of(seen: Observation) -> list[str]:
    return sorted({family_of(kernel.kernel_class, kernel.variant, kernel.dtype) for kernel in seen.kernels})


def _moved(seen: Observation) -> float:
    return sum(kernel.bytes_read + kernel.bytes_written for kernel in seen.kernels)


def of_architecture(data: Path, key: str) -> list[Observation]:
    """The observations on all devices of a device's architecture."""
    devices = {name: load_device(name) for name in dict.fromkeys((key, *MEASURED))}
    ours = devices[key].compute_capability
    alike = [device for device in devices.values() if device.compute_capability == ours]
    return [seen for device in alike for seen in memory_bound_kernels.observations(data, device)]


def similar_observations(data: Path, key: str) -> list[Observation]:
    """The observations on the other architecture to which a device's curves are drawn."""
    return of_architecture(data, _LEANS_ON[key]) if key in _LEANS_ON else []


def hold_out(observations: Sequence[Observation], similar: Sequence[Observation] = ()) -> HeldOutRows:
    """Predict each part of the groups by curves of the others. Families that only that part has are left out.

    `similar` are observations of another architecture, to which the curves are drawn. Sizes that are held out of one
    device are held out of all.
    """
    kept: list[Observation] = []
    predicted: list[float] = []
    # There are few groups: assigned in turn, so that no part is empty.
    part_of = {group: i % FOLDS for i, group in enumerate(sorted({seen.group for seen in observations}))}
    for part in range(FOLDS):
        held = [seen for seen in observations if part_of[seen.group] == part]
        sizes = {(seen.device.key, size) for seen in held for size in sizes_of(seen)}
        rest = [seen for seen in observations if part_of[seen.group] != part and not _elsewhere(seen, sizes)]
        if not held or not rest:
            continue
        curves, overheads = fit(rest, _learn([seen for seen in similar if not _elsewhere(seen, sizes)]))
        known = [seen for seen in held if set(families_of(seen)) <= curves.keys() and overhead_of(seen) in overheads]
        kept += known
        predicted += predict(known, curves, overheads).tolist()
    measured = np.array([seen.seconds for seen in kept])
    return HeldOutRows(kept, np.array(predicted), measured)


def sizes_of(seen: Observation) -> set[float]:
    """The lengths of rows in an observation."""
    return {kernel.shape["columns"] for kernel in seen.kernels if "columns" in kernel.shape}


def _elsewhere(seen: Observation, held: set[tuple[str, float]]) -> bool:
    """Whether an observation has a row length that is held out of another device."""
    lengths = sizes_of(seen)
    return any(size in lengths and key != seen.device.key for key, size in held)


def _learn(similar: Sequence[Observation]) -> dict[str, Curve] | None:
    return fit(similar)[0] if similar else None


def train(device: Device, observations: Sequence[Observation], similar: Sequence[Observation] = ()) -> dict[str, Curve]:
    """Curves of all families measured on a device, each with its sources and its held-out error."""
    held_out = hold_out(observations, similar).on(device)
    curves, _ = fit(observations, _learn(similar))
    sources: dict[str, set[str]] = defaultdict(set)
    rows: dict[str, int] = defaultdict(int)
    shared_with: dict[str, set[str]] = defaultdict(set)
    for seen in observations:
        for family in families_of(seen):
            sources[family].add(seen.source.split()[0])
            rows[family] += seen.device.key == device.key
            shared_with[family].add(seen.device.key)
    trained = {}
    for family, curve in sorted(curves.items()):
        if not rows[family]:
            continue
        names = sorted(sources[family])
        about: dict[str, object] = {
            "source": "; ".join(memory_bound_kernels.SOURCES[name][0] for name in names),
            "licence": "; ".join(sorted({memory_bound_kernels.SOURCES[name][1] for name in names})),
            "date": memory_bound_kernels.DATE,
            "rows": rows[family],
            "grouped_by": "sizes of rows",
            "measured_on": sorted(shared_with[family]),
            **({"leans_on": sorted({seen.device.key for seen in similar})} if similar else {}),
            "spread": 0.3,
        }
        chosen = held_out.rows_of(family) if held_out.observations else np.zeros(0, dtype=bool)
        error = held_out.error(chosen)
        if error is not None:
            residual = np.log(held_out.predicted[chosen] / held_out.measured[chosen])
            about["held_out"] = vars(error)
            about["spread"] = round(float(np.sqrt(np.mean(residual**2))), 4)
        trained[family] = replace(curve, about=about)
    return trained
