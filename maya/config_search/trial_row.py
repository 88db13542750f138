"""One trial of a search: its configuration, and its figures or the reason why there are none.

In: a run's summary, a replay, or other trials. Out: a `TrialRow`, which trial-N.json keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maya.api.figures import PlainFigures
from maya.scaling.scale_row import ScaleRow, row_of_dict
from maya.util.expressions import Value

RUN, REPLAY, INFERRED = ORIGINS = ("run", "replay", "inferred")
PREDICTED, OUT_OF_MEMORY, FAILED, PRUNED = OUTCOMES = ("predicted", "out of memory", "failed", "pruned")


@dataclass(frozen=True)
class TrialRow(PlainFigures):
    """A finished trial."""

    number: int
    configuration: Mapping[str, Value]
    origin: str  # RUN, REPLAY or INFERRED
    outcome: str  # PREDICTED, OUT_OF_MEMORY, FAILED or PRUNED
    source: int | None = None  # the trial that was replayed, or that this one is inferred from
    problem: str = ""  # why there are no figures
    seconds: float = 0.0  # that it took here
    spread: float = 0.0  # expected relative error of a kernel's time
    processes_bytes: int | None = None  # private memory of its processes on this machine
    figures: ScaleRow | None = None
    bound: ScaleRow | None = None  # of a pruned trial: the best figures that it could have had, as far as known

    @property
    def folder(self) -> str:
        """The folder of the run behind the figures, in the search's folder."""
        return trial_name(self.number if self.source is None else self.source)

    @property
    def is_predicted(self) -> bool:
        return self.outcome == PREDICTED

    def fits(self, share: float) -> bool:
        """Whether the memory of the worst rank is at most this share of a GPU's."""
        figures = self.figures
        if figures is None or not figures.memory_capacity_bytes:
            return self.is_predicted
        return (figures.peak_memory_bytes or 0) <= share * figures.memory_capacity_bytes

    def flat(self) -> dict[str, Any]:
        """Numbers and texts by name: the parameters, the outcome, and the figures."""
        own = {name: getattr(self, name) for name in ("number", "origin", "outcome", "source", "problem", "spread")}
        figures = {} if self.figures is None else self.figures.flat()
        for name in ("folder", "problem"):
            figures.pop(name, None)
        least = {} if self.bound is None else {"least_step_time_ns": self.bound.step_time_ns}
        return {**own, **least, **{f"parameter.{name}": value for name, value in self.configuration.items()}, **figures,
                "seconds": self.seconds, "folder": self.folder}  # fmt: skip


def trial_name(number: int) -> str:
    return f"trial-{number}"


def trial_of_dict(table: Mapping[str, Any]) -> TrialRow:
    """A row as `to_dict` made it, after JSON."""
    parts = {name: table.get(name) for name in ("figures", "bound")}
    values = {**table, **{name: None if part is None else row_of_dict(part) for name, part in parts.items()}}
    row = TrialRow(**values)
    if row.origin not in ORIGINS or row.outcome not in OUTCOMES:
        raise ValueError(f"{row.origin}, {row.outcome}")
    return row
