"""Trains the curves of a device, with the error on sizes that were left out.

In: `Observation`s. Out: curves that carry their source, licence, date, and held-out error. The groups (sizes of rows,
hidden sizes) are dealt into five parts; each part is predicted by curves that were fitted to the other four.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from maya.devices import Device
from maya.estimators.batch import Floats
from maya.estimators.curves import Curve, Observation, family_of, fit, predict
from maya.estimators.sources.moving import DATE, SOURCES
from maya.estimators.training import FOLDS, Error

# A device, and the relative that its curves lean on.
RELATIVES = {
    "h100": "a100-80",
    "h200": "h100",
    "gb200": "h200",
    "a100-80": "a100-40",
    "a100-40": "v100",
    "v100": "a100-40",
}
LARGE = 1e6  # bytes: above it, the launch is no longer the most of a kernel's time


@dataclass(frozen=True)
class HeldOutRows:
    """Predictions of observations by curves that had not seen their sizes."""

    observations: list[Observation]
    predicted: Floats
    measured: Floats

    def error(self, chosen: npt.NDArray[np.bool_]) -> Error | None:
        return Error.of(self.predicted[chosen], self.measured[chosen]) if chosen.any() else None

    def rows_of(self, name: str) -> npt.NDArray[np.bool_]:
        """The observations that are of one family, or that begin with it."""
        return np.array([name in families_of(seen) for seen in self.observations])

    def large(self) -> npt.NDArray[np.bool_]:
        return np.array([_moved(seen) / len(seen.works) > LARGE for seen in self.observations])


def families_of(seen: Observation) -> list[str]:
    return sorted({family_of(work.kind, work.variant, work.dtype) for work in seen.works})


def _moved(seen: Observation) -> float:
    return sum(work.bytes_read + work.bytes_written for work in seen.works)


def hold_out(
    device: Device, observations: Sequence[Observation], lessons: tuple[Device, Sequence[Observation]] | None = None
) -> HeldOutRows:
    """Each part of the groups, predicted by curves of the others. Families that only the part has are left out.

    `lessons` are another device's observations, whose curves these lean on; sizes that are held out are held out there,
    too.
    """
    kept: list[Observation] = []
    predicted: list[float] = []
    # There are few groups: dealt one by one, so that no part is empty.
    part_of = {group: i % FOLDS for i, group in enumerate(sorted({seen.group for seen in observations}))}
    for part in range(FOLDS):
        held = [seen for seen in observations if part_of[seen.group] == part]
        rest = [seen for seen in observations if part_of[seen.group] != part]
        if not held or not rest:
            continue
        sizes = {size for seen in held for size in sizes_of(seen)}
        curves, overheads = fit(device, rest, _learn(lessons, sizes))
        known = [seen for seen in held if set(families_of(seen)) <= curves.keys() and seen.source in overheads]
        kept += known
        predicted += predict(device, known, curves, overheads).tolist()
    measured = np.array([seen.seconds for seen in kept])
    return HeldOutRows(kept, np.array(predicted), measured)


def sizes_of(seen: Observation) -> set[float]:
    """The lengths of rows in an observation."""
    return {work.shape["columns"] for work in seen.works if "columns" in work.shape}


def _learn(lessons: tuple[Device, Sequence[Observation]] | None, without: set[float]) -> dict[str, Curve] | None:
    if lessons is None:
        return None
    device, observations = lessons
    allowed = [seen for seen in observations if not sizes_of(seen) & without]
    return fit(device, allowed)[0] if allowed else None


def train(
    device: Device, observations: Sequence[Observation], lessons: tuple[Device, Sequence[Observation]] | None = None
) -> dict[str, Curve]:
    """Curves of everything, each with what it was learned from and its held-out error."""
    held_out = hold_out(device, observations, lessons)
    curves, _ = fit(device, observations, _learn(lessons, set()))
    sources: dict[str, set[str]] = defaultdict(set)
    rows: dict[str, int] = defaultdict(int)
    for seen in observations:
        for family in families_of(seen):
            sources[family].add(seen.source.split()[0])
            rows[family] += 1
    trained = {}
    for family, curve in sorted(curves.items()):
        names = sorted(sources[family])
        about: dict[str, object] = {
            "source": "; ".join(SOURCES[name][0] for name in names),
            "licence": "; ".join(sorted({SOURCES[name][1] for name in names})),
            "date": DATE,
            "rows": rows[family],
            "grouped_by": "sizes of rows",
            **({"leans_on": lessons[0].key} if lessons else {}),
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
