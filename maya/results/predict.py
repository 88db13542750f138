"""Predict a recorded run: replay it, compute the results, and write the trace files.

In: a folder that maya-torchrun recorded. Out: a `Prediction`, and in the folder traces/rank<N>_trace.json.gz and
cluster_trace.json.gz. Rank traces have a folder of their own because HTA reads every JSON file of a folder as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maya.replay.recording import Recording, read_recording
from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.replay.trace_digest import trace_files
from maya.results.cluster_trace import write_cluster_trace
from maya.results.rank_trace import write_rank_trace
from maya.results.result import OptionError, Options, Result, conclude
from maya.util.ranks import NoSuchRankError, parse_ranks

TRACES = "traces"
_MOST_TRACES = 8


@dataclass(frozen=True, eq=False)
class Prediction:
    """The result of a run, and the trace files that were written."""

    result: Result
    rank_traces: tuple[Path, ...]
    cluster_trace: Path | None
    unwritten: str = ""  # why trace files are missing


def predict(folder: Path, settings: RunSettings | None = None) -> Prediction:
    """Predict a recorded run with its own settings, and write its trace files. If the folder cannot be written to, only
    the trace files are missing."""
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
    """The ranks that get a trace file: those that the user names ("0,8-15", "all" that were processes, "none"), or the
    first rank of each rank class, of at most the eight largest classes."""
    recorded = {rank for each in recording.rank_classes for rank in each.ranks}
    if text is None:
        largest = sorted(recording.rank_classes, key=lambda each: (-len(each.ranks), min(each.ranks)))
        return sorted(min(each.ranks) for each in largest[:_MOST_TRACES])
    if text == "none":
        return []
    present = [rank for rank, _ in trace_files(recording.folder)]
    wanted = present if text == "all" else parse_trace_ranks(text, world_size)
    return [rank for rank in wanted if rank in recorded]


def parse_trace_ranks(text: str, world_size: int) -> Sequence[int]:
    """ "0,8-15" -> 0, 8, 9, ... 15."""
    try:
        return parse_ranks(text, repeated=True, world_size=world_size)
    except NoSuchRankError as error:
        raise OptionError(f'trace ranks "{text}": {error}') from None
    except ValueError:
        raise OptionError(f'trace ranks "{text}": expected ranks, e.g. 0,8-15, or all, or none') from None
