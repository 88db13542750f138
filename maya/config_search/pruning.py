"""Prunes trials that are certain to be far behind the best one.

In: the trials that the decision may depend on, and the job of the next one. Out: the limit of its step time for
maya-torchrun (--give-up-above), and, if the job was given up, the row of a pruned trial. The limit leaves room for the
error of a kernel's time in both trials, so a configuration that could be as good as the best is never pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from maya.config_search.objective import COST, STEP_TIME, Objective, find_objective
from maya.config_search.search_space import Configuration
from maya.config_search.trial_command import TrialCommand
from maya.config_search.trial_row import PRUNED, RUN, TrialRow
from maya.launcher.giving_up import GiveUpLimit, LeastStep
from maya.scaling.scale_row import ScaleRow
from maya.util.text import time_text

_LEAST_MARGIN = 0.1  # a trial that is less behind is not pruned, however certain its kernels' times are
_FEWEST_EQUAL = 3  # trials with the same number of tokens in a step, before others are taken to have it as well
_PRICE = "price_per_gpu_hour"


def give_up_limit(rows: Sequence[TrialRow], objective: str, memory: float, command: TrialCommand) -> GiveUpLimit | None:
    """The longest step that a trial may have to be worth running; `rows`: finished trials. None: it runs."""
    if not command.launch.finds_representatives:
        return None
    predicted = [row for row in rows if row.is_predicted and row.figures is not None]
    found = find_objective(objective, [row.figures for row in predicted if row.figures is not None])
    best = best_of(predicted, found, memory)
    if best is None or best.figures is None:
        return None
    share = 1.0
    if objective == COST:
        share = _price_of(best.figures) / _price(command, best.figures.price_per_step is not None)
    step_ns = round((best.figures.step_time_ns or 0) * (1 + max(_LEAST_MARGIN, best.spread)) * share)
    if objective == STEP_TIME or found.compares_steps:
        return GiveUpLimit(step_ns)
    work = {(row.figures.unit, row.figures.samples_per_step) for row in predicted if row.figures is not None}
    is_fixed = len(work) == 1 and len(predicted) >= _FEWEST_EQUAL
    return GiveUpLimit(step_ns, best.figures.samples_per_step, is_fixed)


def best_of(rows: Sequence[TrialRow], objective: Objective, memory: float) -> TrialRow | None:
    """The best of the trials that fit."""
    fitting = [
        (objective.score(row.figures), row.number, row) for row in rows if row.figures is not None and row.fits(memory)
    ]
    return min(fitting)[2] if fitting else None


def pruned_row(
    number: int, configuration: Configuration, command: TrialCommand, run: Path, seconds: float
) -> TrialRow | None:
    """The row of a run that was given up; None: it was not."""
    least = LeastStep.load(run)
    if least is None:
        return None
    allowed = time_text(GiveUpLimit.parse(least.limit).allowed_ns(least.samples))
    problem = f"{least.problem}; {allowed} would be the best trial so far and the error of its kernels' times"
    bound = _bound(run.name, command, least)
    return TrialRow(number, configuration, RUN, PRUNED, problem=problem, seconds=round(seconds, 1), bound=bound)


def bounds_of(bound: ScaleRow, limit: GiveUpLimit, objective: Objective) -> tuple[float, float]:
    """The best value of the objective that a pruned trial can have, and the one that it would have to beat."""
    value = objective.value(bound)
    share = limit.allowed_ns(bound.samples_per_step) / (bound.step_time_ns or 1)
    return value, value / share if objective.is_best_high else value * share


def _bound(folder: str, command: TrialCommand, least: LeastStep) -> ScaleRow:
    """The best figures that the trial can have."""
    gpus = command.launch.world_size
    hours = gpus * least.step_ns / 1e9 / 3600
    price = command.launch.timing.results.get(_PRICE)
    row = ScaleRow(
        gpus,
        folder,
        gpus=gpus,
        step_time_ns=least.step_ns,
        gpu_hours_per_step=hours,
        price_per_step=None if price is None else hours * float(price),
    )
    if not least.samples:
        return row
    per_billion = 1e9 / least.samples
    return replace(
        row,
        unit=least.unit,
        samples_per_step=least.samples,
        samples_per_second=least.samples / least.step_ns * 1e9,
        gpu_hours_per_billion=hours * per_billion,
        price_per_billion=None if row.price_per_step is None else row.price_per_step * per_billion,
    )


def _price_of(figures: ScaleRow) -> float:
    """What a nanosecond of the job costs."""
    cost = figures.gpu_hours_per_step if figures.price_per_step is None else figures.price_per_step
    return float(cost or 0.0) / (figures.step_time_ns or 1)


def _price(command: TrialCommand, is_price: bool) -> float:
    """The same for a job that has not run: GPU-hours, or a price."""
    hours = command.launch.world_size / 1e9 / 3600
    return hours * float(command.launch.timing.results.get(_PRICE) or 1.0) if is_price else hours
