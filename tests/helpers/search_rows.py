"""Spaces and trials of searches, without running anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maya.config_search.parameter import make_parameter
from maya.config_search.search_space import SearchSpace
from maya.config_search.trial_row import INFERRED, OUT_OF_MEMORY, PREDICTED, RUN, TrialRow
from maya.scaling.scale_row import ScaleRow
from maya.util.expressions import Value

GIB = 2**30


def space_of(where: tuple[str, ...] = (), when: str | None = None, **values: list[Value]) -> SearchSpace:
    parameters = [make_parameter(name, each) for name, each in values.items()]
    if when is not None:
        parameters[-1] = parameters[-1].only_when(when)
    return SearchSpace(parameters, where, {"nproc": 8})


def figures(speed: float, memory: float, **changes: Any) -> ScaleRow:
    row = ScaleRow(
        8,
        "trial",
        nodes=1,
        gpus=8,
        processes=1,
        step_time_ns=round(1e12 / speed),
        unit="tokens",
        samples_per_step=1000,
        samples_per_second=speed,
        mfu=0.4,
        class_ns={"gemm": 900, "bubble": 100},
        exposed_share=0.1,
        peak_memory_bytes=round(memory * GIB),
        memory_capacity_bytes=80 * GIB,
        memory_bytes={"reserved": round(memory * GIB)},
        gpu_hours_per_step=8 / speed,
        gpu_hours_per_billion=1e6 / speed,
    )
    return replace(row, **changes)


def trial(number: int, speed: float | None, memory: float = 10.0, **configuration: Value) -> TrialRow:
    """A run; without a speed, it has run out of memory."""
    if speed is None:
        return TrialRow(number, configuration, RUN, OUT_OF_MEMORY, problem="tried to allocate 4.00 GiB")
    return TrialRow(number, configuration, RUN, PREDICTED, spread=0.02, figures=figures(speed, memory))


def inferred(number: int, source: int, **configuration: Value) -> TrialRow:
    return TrialRow(number, configuration, INFERRED, OUT_OF_MEMORY, source, "as the other")
