"""From a run's folder to its prediction: simulate it, conclude, and write the traces.

In: a folder that maya-torchrun recorded. Out: a `Prediction`, and in the folder traces/rank<N>_trace.json.gz and
cluster_trace.json.gz. Rank traces have a folder of their own because HTA takes every JSON file of a folder for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maya.replay.recording import Recording, read_recording
from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.results.cluster_trace import write_cluster_trace
from maya.results.kineto import write_rank_trace
from maya.results.result import OptionError, Options, Result, conclude

TRACES = "traces"
_MOST_TRACES = 8


@dataclass(frozen=True, eq=False)
class Prediction:
    """What became of a run."""

    result: Result
    rank_traces: tuple[Path, ...]
    cluster_trace: Path | None
    unwritten: str = ""  # why traces are missing that should be there


def predict(folder: Path, settings: RunSettings | None = None) -> Prediction:
    """Simulate a recorded run as it was started, and write its traces. A folder that cannot be written to costs the
    traces, not the prediction."""
    settings = settings or RunSettings.load(folder)
    options = Options.of(settings.options)
    recording = read_recording(folder, settings.inductor_folder(folder))
    chosen = choose_ranks(options.trace_ranks, recording, settings.world_size)
    result = conclude(simulate(recording, settings, detailed=chosen), options)
    traces = folder / TRACES
    written: list[Path] = []
    try:
        if chosen:
            traces.mkdir(exist_ok=True)
        for rank in chosen:
            written.append(write_rank_trace(result, rank, traces))
        return Prediction(result, tuple(written), write_cluster_trace(result, folder))
    except OSError as error:
        if not written:
            with suppress(OSError):
                traces.rmdir()
        problem = f"cannot write traces for Perfetto to {folder}: {error.strerror}"
        return Prediction(result, tuple(written), None, problem)


def choose_ranks(text: str | None, recording: Recording, world_size: int) -> list[int]:
    """Whose traces are written: those that the user wants ("0,8-15", "all", "none"), or the first of each behaviour,
    those that most ranks have first."""
    recorded = sorted(rank for part in recording.rank_classes for rank in part.ranks)
    if text is None:
        parts = sorted(recording.rank_classes, key=lambda part: (-len(part.ranks), min(part.ranks)))
        return sorted(min(part.ranks) for part in parts[:_MOST_TRACES])
    if text in ("all", "none"):
        return recorded if text == "all" else []
    wanted = parse_ranks(text, world_size)
    return [rank for rank in wanted if rank in set(recorded)]


def parse_ranks(text: str, world_size: int) -> Sequence[int]:
    """ "0,8-15" -> 0, 8, 9, ... 15."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise OptionError(f'trace ranks "{text}": expected ranks, e.g. 0,8-15, or all, or none')
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    beyond = [rank for rank in sorted(found) if rank >= world_size]
    if beyond:
        raise OptionError(f'trace ranks "{text}": there is no rank {beyond[0]}, only 0 to {world_size - 1}')
    return sorted(found)
