"""The answer of a search: the best trials, those that are as good, the Pareto front, and what each parameter does.

In: finished trials and the objective. Out: plain objects, from which text and pages are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from maya.api.figures import PlainFigures
from maya.config_search.objective import Objective, find_objective
from maya.config_search.search_space import SearchSpace
from maya.config_search.trial_row import FAILED, INFERRED, OUT_OF_MEMORY, PRUNED, REPLAY, RUN, TrialRow
from maya.scaling.scale_row import ScaleRow
from maya.util.expressions import Value


@dataclass(frozen=True)
class ValueEffect(PlainFigures):
    """The best trial with one value of a parameter."""

    value: Value
    trials: int  # that have figures and fit
    tried: int  # all, also those that ran out of memory or failed
    best: int | None  # number of the trial; None: none fits
    difference: float | None  # from the best of all: 0.1 for a tenth more time or money
    at_least: float | None = None  # the same of pruned trials, if one of them may be less behind than the best trial


@dataclass(frozen=True)
class ParameterEffect(PlainFigures):
    """What the choice of one parameter decides."""

    name: str
    values: tuple[ValueEffect, ...]

    @property
    def range(self) -> float:
        """The largest difference between the best trials with each value."""
        found = (each.difference if each.at_least is None else each.at_least for each in self.values)
        return max((each for each in found if each is not None), default=0.0)


class SearchAnswer:
    """`memory`: the share of a GPU's memory that a trial may need."""

    def __init__(self, rows: Sequence[TrialRow], space: SearchSpace, objective: str, memory: float) -> None:
        self.rows = tuple(rows)
        self.space = space
        self.memory = memory
        predicted = [row for row in rows if row.is_predicted and row.figures is not None]
        self.objective: Objective = find_objective(objective, [_figures(row) for row in predicted])
        self.ranked: tuple[TrialRow, ...] = tuple(
            sorted((row for row in predicted if row.fits(memory)), key=lambda row: (self.score(row), row.number))
        )
        self.too_large = tuple(row for row in predicted if not row.fits(memory))

    def score(self, row: TrialRow) -> float:
        return self.objective.score(_figures(row))

    def difference(self, row: TrialRow) -> float:
        """How much more time or money than the best."""
        return self.objective.difference(_figures(row), _figures(self.ranked[0]))

    @property
    def best(self) -> TrialRow | None:
        return self.ranked[0] if self.ranked else None

    @cached_property
    def equals(self) -> tuple[TrialRow, ...]:
        """Trials that differ from the best by less than the expected error of a kernel's time."""
        if not self.ranked:
            return ()
        best = self.ranked[0]
        return tuple(row for row in self.ranked[1:] if self.difference(row) <= max(best.spread, row.spread))

    @cached_property
    def pareto(self) -> tuple[TrialRow, ...]:
        """Trials that no other beats in the objective, memory and cost together, the best objective first; of trials
        with equal figures the first."""
        different = {self._measures(row): row for row in reversed(self.ranked)}
        front = [row for row in different.values() if not any(self._beats(other, row) for other in self.ranked)]
        return tuple(sorted(front, key=lambda row: (self.score(row), row.number)))

    @cached_property
    def effects(self) -> tuple[ParameterEffect, ...]:
        """What each parameter does, the one that decides most first."""
        found = [self._effect(name) for name in self.space.names]
        return tuple(sorted(found, key=lambda each: -each.range))

    @property
    def pruned(self) -> tuple[TrialRow, ...]:
        """Trials that were given up."""
        return tuple(row for row in self.rows if row.outcome == PRUNED)

    def least_difference(self, row: TrialRow) -> float | None:
        """How much more time or money than the best a pruned trial needs at least."""
        if row.bound is None or not self.ranked:
            return None
        return self.objective.difference(row.bound, _figures(self.ranked[0]))

    def count(self, origin: str) -> int:
        return sum(row.origin == origin for row in self.rows)

    @property
    def counts(self) -> str:
        """How many trials there are, and where they come from."""
        parts = [f"{self.count(RUN)} run"]
        parts += [f"{count} {name}" for name, count in (("replayed", self.count(REPLAY)),) if count]
        parts += [f"{count} inferred to run out of memory" for count in (self.count(INFERRED),) if count]
        without = [row for row in self.rows if row.origin != INFERRED]
        full = sum(row.outcome == OUT_OF_MEMORY for row in without)
        failed = sum(row.outcome == FAILED for row in without)
        parts += [f"{full} out of memory"] if full else []
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{len(self.pruned)} pruned"] if self.pruned else []
        return ", ".join(parts)

    def _effect(self, name: str) -> ParameterEffect:
        parameter = next(each for each in self.space.parameters if each.name == name)
        values = []
        for value in parameter.values:
            rows = [row for row in self.ranked if row.configuration[name] == value]
            best = rows[0] if rows else None
            difference = None if best is None else self.difference(best)
            tried = sum(row.configuration[name] == value for row in self.rows)
            pruned = [self.least_difference(row) for row in self.pruned if row.configuration[name] == value]
            least = min((each for each in pruned if each is not None), default=None)
            if least is not None and difference is not None and least >= difference:
                least = None
            number = None if best is None else best.number
            values.append(ValueEffect(value, len(rows), tried, number, difference, least))
        return ParameterEffect(name, tuple(values))

    def _beats(self, other: TrialRow, row: TrialRow) -> bool:
        mine, its = self._measures(row), self._measures(other)
        return all(a <= b for a, b in zip(its, mine, strict=True)) and its != mine

    def _measures(self, row: TrialRow) -> tuple[float, ...]:
        figures = _figures(row)
        cost = (
            figures.gpu_hours_per_billion if figures.gpu_hours_per_billion is not None else figures.gpu_hours_per_step
        )
        return (self.score(row), float(figures.peak_memory_bytes or 0), float(cost or 0.0))


def _figures(row: TrialRow) -> ScaleRow:
    assert row.figures is not None
    return row.figures
