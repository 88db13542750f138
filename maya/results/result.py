"""All results of a timeline: steps, where their time goes, throughput, memory, traffic, origins.

In: a `Timeline` and `Options`. Out: a `Result`. The terminal text, summary.json, trace files, the report and what-if
comparisons are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from maya.assumptions import STEPS, Assumption, wall_clock
from maya.replay.timeline import Timeline
from maya.replay.truncated_traces import truncations
from maya.results.exposed_calls import ExposedCalls, find_exposed_calls
from maya.results.kernels_without_model import KernelsWithoutModel, find_kernels_without_model
from maya.results.memory import MemoryUse, find_memory
from maya.results.origins import Origins, find_origins
from maya.results.routed_time import RoutedTime, find_routed_time
from maya.results.steps import Steps, find_steps
from maya.results.steps_from_backward import MEANINGS
from maya.results.throughput import Throughput, find_throughput
from maya.results.time_breakdown import TimeBreakdown, find_time_breakdown
from maya.results.trace_assumptions import trace_assumptions
from maya.results.traffic import Traffic, find_traffic
from maya.util.suggestions import did_you_mean


class OptionError(ValueError):
    """An option with an invalid value."""


_TYPES: dict[str, type | tuple[type, ...]] = {
    "steps_from": (str, type(None)),
    "tokens_per_step": (int, type(None)),
    "price_per_gpu_hour": (int, float, type(None)),
    "trace_ranks": (str, type(None)),
}


@dataclass(frozen=True)
class Options:
    """Options that affect the results only; `options` in run.json."""

    steps_from: str | None = None  # the annotation that ends a step; None: optimizers
    tokens_per_step: int | None = None  # of the whole job; None: found in the traces
    price_per_gpu_hour: float | None = None
    trace_ranks: str | None = (
        None  # ranks that get a trace file: "0,8-15", "all" or "none"; None: one of each rank class
    )

    @staticmethod
    def of(table: Mapping[str, Any]) -> Options:
        """Read the table in run.json."""
        known = {each.name for each in fields(Options)}
        for key in table:
            if key not in known:
                raise OptionError(f'options of the results: unknown key "{key}"{did_you_mean(key, sorted(known))}')
            if not isinstance(table[key], _TYPES[key]) or isinstance(table[key], bool):
                raise OptionError(f"options of the results: {key} is {table[key]!r}, which has the wrong type")
        return Options(**table)

    def table(self) -> dict[str, Any]:
        """The table for run.json, without options that are not set."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a job."""

    timeline: Timeline
    options: Options
    steps: Steps
    breakdown: TimeBreakdown
    exposed: ExposedCalls
    throughput: Throughput
    memory: MemoryUse
    traffic: Traffic
    origins: Origins
    kernels_without_model: KernelsWithoutModel
    routed_time: RoutedTime | None  # None: no choice by rule routes
    assumptions: tuple[Assumption, ...]  # a reader must know them before the numbers

    @property
    def step_ns(self) -> int:
        """The median of the measured steps."""
        return self.steps.median_ns


def conclude(timeline: Timeline, options: Options | None = None) -> Result:
    """All results of a timeline. `options` default to those that the job was started with."""
    if options is None:
        options = Options.of(timeline.settings.options)
    steps = find_steps(timeline, options.steps_from)
    timeline = _with_steps_named(timeline, steps)
    routed = find_routed_time(timeline, steps)
    return Result(
        timeline=timeline,
        options=options,
        steps=steps,
        breakdown=find_time_breakdown(timeline, steps),
        exposed=find_exposed_calls(timeline, steps),
        throughput=find_throughput(timeline, steps, options.tokens_per_step, options.price_per_gpu_hour),
        memory=find_memory(timeline),
        traffic=find_traffic(timeline, steps),
        origins=find_origins(timeline, steps),
        kernels_without_model=find_kernels_without_model(timeline, steps),
        routed_time=routed,
        assumptions=tuple(_assumptions(timeline, options, steps, routed)),
    )


def _with_steps_named(timeline: Timeline, steps: Steps) -> Timeline:
    """Put truncated traces first among the problems, with the number of steps that they hold."""
    truncated = truncations(timeline.groups)
    if not truncated or not steps.whole_steps:
        return timeline
    others = [problem for problem in timeline.problems if problem not in truncated]
    return replace(timeline, problems=[*truncations(timeline.groups, steps.whole_steps), *others])


def _assumptions(timeline: Timeline, options: Options, steps: Steps, routed: RoutedTime | None) -> list[Assumption]:
    share = None if routed is None else routed.share
    found = trace_assumptions([rank_class.trace for rank_class in timeline.rank_classes], share)
    if timeline.settings.clock == "wall":
        found.append(wall_clock("--clock wall"))
    if steps.source in MEANINGS and options.steps_from is None:
        found.append(Assumption(STEPS, MEANINGS[steps.source]))
    return found
