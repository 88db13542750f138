"""Everything that is concluded from a timeline: steps, where their time goes, speed, memory, traffic, origins.

In: a `Timeline` and `Options`. Out: a `Result`, which the terminal (text), summary.json (document), traces (kineto),
the report and what-if comparisons are made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from maya.assumptions import STEPS, Assumption, wall_clock
from maya.replay.timeline import Timeline
from maya.replay.truncated_traces import truncations
from maya.results.anatomy import Anatomy, dissect
from maya.results.memory import MemoryUse, find_memory
from maya.results.origins import Origins, find_origins
from maya.results.step_passes import MEANINGS
from maya.results.steps import Steps, find_steps
from maya.results.throughput import Throughput, find_throughput
from maya.results.trace_assumptions import trace_assumptions
from maya.results.traffic import Traffic, find_traffic
from maya.results.without_model import WithoutModel, find_without_model
from maya.util.suggestions import did_you_mean


class OptionError(ValueError):
    """What was asked for cannot be meant."""


@dataclass(frozen=True)
class Options:
    """What the user says about the results; `options` in run.json."""

    steps_from: str | None = None  # an annotation whose end ends a step; None: optimizers
    tokens_per_step: int | None = None  # of the whole job; None: as the traces show
    price_per_gpu_hour: float | None = None
    trace_ranks: str | None = None  # whose traces to write, "0,8-15", "all" or "none"; None: one of each behaviour

    @staticmethod
    def of(table: Mapping[str, Any]) -> Options:
        """From run.json."""
        known = {each.name for each in fields(Options)}
        for key in table:
            if key not in known:
                raise OptionError(f'options of the results: unknown key "{key}"{did_you_mean(key, sorted(known))}')
        return Options(**table)

    def table(self) -> dict[str, Any]:
        """For run.json: what was said."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


@dataclass(frozen=True, eq=False)
class Result:
    """What is known of a job."""

    timeline: Timeline
    options: Options
    steps: Steps
    anatomy: Anatomy
    throughput: Throughput
    memory: MemoryUse
    traffic: Traffic
    origins: Origins
    without_model: WithoutModel
    assumptions: tuple[Assumption, ...]  # to be read before the numbers

    @property
    def step_ns(self) -> int:
        """The median of the measured steps."""
        return self.steps.median_ns


def conclude(timeline: Timeline, options: Options | None = None) -> Result:
    """All results; `options` are by default those that the job was started with."""
    if options is None:
        options = Options.of(timeline.settings.options)
    steps = find_steps(timeline, options.steps_from)
    timeline = _with_steps_named(timeline, steps)
    return Result(
        timeline=timeline,
        options=options,
        steps=steps,
        anatomy=dissect(timeline, steps),
        throughput=find_throughput(timeline, steps, options.tokens_per_step, options.price_per_gpu_hour),
        memory=find_memory(timeline),
        traffic=find_traffic(timeline, steps),
        origins=find_origins(timeline, steps),
        without_model=find_without_model(timeline, steps),
        assumptions=tuple(_assumptions(timeline, options, steps)),
    )


def _with_steps_named(timeline: Timeline, steps: Steps) -> Timeline:
    """Traces that are cut short come first among the problems, with the number of steps that they hold."""
    cut = truncations(timeline.groups)
    if not cut or not steps.whole_steps:
        return timeline
    others = [problem for problem in timeline.problems if problem not in cut]
    return replace(timeline, problems=[*truncations(timeline.groups, steps.whole_steps), *others])


def _assumptions(timeline: Timeline, options: Options, steps: Steps) -> list[Assumption]:
    found = trace_assumptions([rank_class.trace for rank_class in timeline.rank_classes])
    if timeline.settings.clock == "wall":
        found.append(wall_clock("--clock wall"))
    if steps.source in MEANINGS and options.steps_from is None:
        found.append(Assumption(STEPS, MEANINGS[steps.source]))
    return found
