"""The lines that maya-torchrun prints at the end of a run: the counts, the recorded traces, and the next command.

In: a `FinishedRun` and its folder. Out: lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from maya.assumptions import Assumption
from maya.launcher.summary_file import FinishedRun
from maya.results.trace_assumptions import trace_assumptions
from maya.trace import RecordKind, TraceError, count_records, read
from maya.util.ranks import ranks_text

_MUCH_MEMORY = 1_000_000_000  # bytes; ranks whose model is on the GPU take less than a tenth


def summary(run: FinishedRun, folder: Path) -> list[str]:
    """Lines for the terminal: the whole run, if it had several ranks, and the trace of its first rank."""
    return [*(_whole_run(run) if run.ranks > 1 else []), *_recorded(run, folder)]


def _whole_run(run: FinishedRun) -> list[str]:
    line = f"{_number(run.ranks, 'rank')} on virtual {run.gpu}, {run.seconds:.1f} s"
    if run.coordinator:
        collectives, messages = run.coordinator["collectives"], run.coordinator["messages"]
        line += f": {_number(collectives, 'collective')}, {_number(messages, 'message')}"
    pauses = [f"no rank showed any activity for {pause.seconds:.0f} s of real time" for pause in run.pauses]
    return [line, *pauses, *_private_memory(run)]


def _private_memory(run: FinishedRun) -> list[str]:
    """A line if the ranks took much of this machine's memory."""
    private = run.private_bytes_per_rank
    if private is None or private["largest"] < _MUCH_MEMORY:
        return []
    largest, median = (f"{number / 1e9:.1f} GB" for number in private.values())
    return [f"a rank had up to {largest} of this machine's memory for itself (median {median})"]


def _recorded(run: FinishedRun, folder: Path) -> list[str]:
    if not folder.exists():
        return [f"the folder {relative(folder)} was removed while the job ran, and its traces with it"]
    lost = [_lost(run.lost_traces, folder)] if run.lost_traces else []
    if not run.traces:
        return lost or ["nothing recorded: the script did not use its GPU, or no trace could be written"]
    rank, file = min(run.traces.items())
    shown = relative(file)
    try:
        trace = read(file)
    except TraceError as error:
        return [*lost, f"the trace cannot be read: {error}"]
    except OSError as error:
        return [*lost, f"cannot read the trace {shown}: {error.strerror}"]
    totals = count_records(trace)
    copies = totals.counts.get(RecordKind.MEMCPY, 0)
    where = f"on a virtual {run.gpu}" if run.ranks == 1 else f"rank {rank}"
    lines = [
        *lost,
        f"{where}: {_number(totals.ops, 'op')}, {_number(totals.launches, 'kernel')}, "
        f"{_number(totals.library_calls, 'library call')}, {_number(copies, 'copy', 'copies')}",
    ]
    if not trace.complete:
        lines.append(f"the trace is not complete: {trace.problem}")
    if len(run.traces) > 1:
        return [*lines, f"recorded in {relative(folder)}, a trace for each rank; to read one: maya trace show {shown}"]
    return [*lines, f"recorded in {shown}; to read it: maya trace show {shown}"]


def _lost(ranks: Sequence[int], folder: Path) -> str:
    return (
        f"no trace of {ranks_text(ranks)}, which could not write to {relative(folder)} (the reason is above); "
        "make room there, or choose another folder with --out, and run the job again"
    )


def assumptions_of(run: FinishedRun) -> list[Assumption]:
    """The assumptions behind the trace of the first rank, for a run without a prediction."""
    if not run.traces:
        return []
    try:
        return trace_assumptions([read(min(run.traces.items())[1])])
    except (TraceError, OSError):  # summary() reports them
        return []


def place_text(at: str) -> str:
    """A source line of the trace ("/home/me/train.py:33"), with a relative path."""
    file, _, line = at.rpartition(":")
    return f"{relative(Path(file))}:{line}"


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def relative(path: Path) -> str:
    """A path relative to the current folder; absolute if it lies outside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
