"""Turns what a trial produced into its row.

In: a run that has ended, a run to replay on other hardware, or a trial that another one is inferred from. Out: a
`TrialRow`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maya.api.run import load
from maya.config_search.pruning import pruned_row
from maya.config_search.search_space import Configuration
from maya.config_search.trial_command import TrialCommand
from maya.config_search.trial_row import (
    FAILED,
    INFERRED,
    OUT_OF_MEMORY,
    PREDICTED,
    REPLAY,
    RUN,
    TrialRow,
    trial_name,
)
from maya.launcher.arguments import fitting_cluster
from maya.scaling.finished_run import row_of_run
from maya.scaling.scale_row import ScaleRow, row_of_summary
from maya.util.ranks import parse_ranks

_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory")


def row_of_trial(
    number: int,
    configuration: Configuration,
    command: TrialCommand,
    run: Path,
    log: Path,
    exit_code: int,
    seconds: float,
) -> TrialRow:
    """The row of a run that has ended."""
    pruned = pruned_row(number, configuration, command, run, seconds)
    if pruned is not None:
        return pruned
    figures = row_of_run(command.launch.world_size, run, log, exit_code, seconds)
    if figures.problem:
        is_full = _OUT_OF_MEMORY.search(figures.problem)
        problem = figures.problem if is_full is None else _memory_problem(figures.problem)
        outcome = FAILED if is_full is None else OUT_OF_MEMORY
        return TrialRow(number, configuration, RUN, outcome, problem=problem, seconds=figures.seconds)
    summary = _summary(run)
    return TrialRow(
        number,
        configuration,
        RUN,
        PREDICTED,
        seconds=figures.seconds,
        spread=summary["prediction"]["origins"]["spread"],
        processes_bytes=_processes_bytes(summary),
        figures=figures,
    )


def row_of_refusal(number: int, configuration: Configuration, problem: str) -> TrialRow:
    """The row of a configuration that maya-torchrun refuses."""
    return TrialRow(number, configuration, RUN, FAILED, problem=problem)


def can_replay(source: TrialCommand, target: TrialCommand) -> bool:
    """Whether a replay of one run gives the figures of the other."""
    return source.software == target.software and set(source.hardware) == set(target.hardware)


def replayed_row(
    number: int, configuration: Configuration, command: TrialCommand, source: TrialRow, folder: Path
) -> TrialRow:
    """The row of a replay of another trial's run on this trial's hardware."""
    began = time.monotonic()
    run = load(folder / trial_name(source.number))
    changes: dict[str, Any] = dict(command.hardware)
    if "gpu" in changes and "cluster" not in changes:
        changes["cluster"] = fitting_cluster(command.device)  # as maya-torchrun does
    prediction = run.predict(**changes)
    summary = {
        **(run.summary or {}),
        "nodes": prediction.settings.nodes,
        "prediction": prediction.to_dict(),
        "assumptions": [{"text": text} for text in prediction.assumptions],
    }
    seconds = round(time.monotonic() - began, 1)
    figures = row_of_summary(command.launch.world_size, trial_name(source.number), summary, seconds)
    spread = summary["prediction"]["origins"]["spread"]
    if prediction.memory.fits:
        return TrialRow(
            number, configuration, REPLAY, PREDICTED, source.number, seconds=seconds, spread=spread, figures=figures
        )
    problem = f"the run of trial {source.number} needs {_gib(figures)} of {command.device.memory_bytes / 2**30:.1f} GiB"
    return TrialRow(number, configuration, REPLAY, OUT_OF_MEMORY, source.number, problem, seconds)


def inferred_row(number: int, configuration: Configuration, source: TrialRow, reason: str) -> TrialRow:
    """The row of a configuration that cannot fit, as another trial did not."""
    return TrialRow(number, configuration, INFERRED, OUT_OF_MEMORY, source.number, reason)


def _memory_problem(problem: str) -> str:
    """The numbers of torch's message."""
    tried = re.search(r"[Tt]ried to allocate ([\d.]+ \wiB)", problem)
    free = re.search(r"total capacity of ([\d.]+ \wiB) of which ([\d.]+ \wiB) is free", problem)
    place = re.search(r" (\([^()]*:\d+\))$", problem)
    if tried is None or free is None:
        return problem
    return f"tried to allocate {tried[1]}, {free[2]} of {free[1]} free{'' if place is None else f' {place[1]}'}"


def _gib(figures: ScaleRow) -> str:
    return f"{(figures.peak_memory_bytes or 0) / 2**30:.1f}"


def _summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return content


def _processes_bytes(summary: Mapping[str, Any]) -> int | None:
    private = summary["emulation"]["private_bytes_per_rank"]
    present = summary.get("present")
    processes = summary["world_size"] if present is None else len(parse_ranks(present))
    return None if private is None else int(private["largest"]) * processes
