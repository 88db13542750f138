"""What a search looks for: throughput, step time or cost.

In: the figures of trials. Out: the value of each, and scores, of which the smallest is best. Where trials do not have
the same figures (tokens are unknown in some), all are compared by steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from maya.config_search.errors import SearchError
from maya.scaling.scale_row import ScaleRow
from maya.util.suggestions import did_you_mean
from maya.util.text import number_text, time_text

THROUGHPUT, STEP_TIME, COST = NAMES = ("throughput", "step-time", "cost")


@dataclass(frozen=True)
class Objective:
    """One figure to compare trials by."""

    name: str
    title: str  # of a column
    is_best_high: bool
    value: Callable[[ScaleRow], float]
    text: Callable[[float], str]
    note: str = ""  # to be read before the values
    compares_steps: bool = False  # whatever the trials process in a step

    def score(self, figures: ScaleRow) -> float:
        """Smaller is better; in proportion to the time or price of the work."""
        value = self.value(figures)
        return 1.0 / value if self.is_best_high else value

    def difference(self, figures: ScaleRow, best: ScaleRow) -> float:
        """How much more time or money than the best: 0.1 for a tenth more."""
        return self.score(figures) / self.score(best) - 1.0


def check_objective(name: str) -> str:
    """The name, if there is such an objective."""
    if name not in NAMES:
        raise SearchError(f"objective {name!r}{did_you_mean(name, NAMES)}: there are {', '.join(NAMES)}")
    return name


def find_objective(name: str, rows: Iterable[ScaleRow]) -> Objective:
    """The objective of this name for these trials."""
    figures = list(rows)
    if name == STEP_TIME:
        return Objective(name, "step time", False, _step_ns, lambda ns: time_text(int(ns)), compares_steps=True)
    units = {row.unit for row in figures}
    unit = next(iter(units), None) if len(units) == 1 else None
    known = unit is not None and all(row.samples_per_second for row in figures)
    note = "" if known or not figures else _note(figures)
    if name == THROUGHPUT:
        if known:
            return Objective(name, f"{unit}/s", True, lambda row: row.samples_per_second or 1e-9, "{:,.0f}".format)
        rate: Callable[[ScaleRow], float] = lambda row: 1e9 / (row.step_time_ns or 1)  # noqa: E731
        return Objective(name, "steps/s", True, rate, number_text, note, compares_steps=True)
    priced = all(row.price_per_step is not None for row in figures)
    of_unit = "price_per_billion" if priced else "gpu_hours_per_billion"
    of_step = "price_per_step" if priced else "gpu_hours_per_step"
    what = "price" if priced else "GPU-h"
    if known:
        return Objective(name, f"{what}/1e9 {unit}", False, lambda row: getattr(row, of_unit) or 0.0, number_text)
    return Objective(
        name,
        f"{what}/1000 steps",
        False,
        lambda row: 1000.0 * float(getattr(row, of_step) or 0.0),
        number_text,
        note,
        compares_steps=True,
    )


def _step_ns(row: ScaleRow) -> float:
    return float(row.step_time_ns or 1)


def _note(figures: Sequence[ScaleRow]) -> str:
    some = any(row.samples_per_second for row in figures)
    where = "of some trials" if some else "of a step"
    return (
        f"tokens {where} are not known, so steps are compared: right only if every configuration does the same work in "
        "a step; --tokens-per-step tells the work"
    )
