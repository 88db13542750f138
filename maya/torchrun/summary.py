"""What maya-torchrun says at the end of a run: what was recorded, which values were made up, and what to open next."""

from __future__ import annotations

import os
from pathlib import Path

from maya.trace import Kind, MadeUpRead, TraceError, read, summarise

_PLACES_SHOWN = 3


def summary(trace_file: Path, gpu: str) -> list[str]:
    """Lines about the trace of a rank; one line that says so if there is none."""
    shown = _relative(trace_file)
    if not trace_file.exists():
        return [f"nothing recorded: the script asked nothing of its GPU ({shown} was not written)"]
    try:
        trace = read(trace_file)
    except TraceError as error:
        return [f"the trace cannot be read: {error}"]
    totals = summarise(trace)
    copies = totals.counts.get(Kind.MEMCPY, 0)
    lines = [
        f"on a virtual {gpu}: {_number(totals.ops, 'op')}, {_number(totals.launches, 'kernel')}, "
        f"{_number(totals.library_calls, 'library call')}, {_number(copies, 'copy', 'copies')}"
    ]
    if totals.made_up_reads:
        lines.append(_made_up(totals.made_up_reads))
    if not trace.complete:
        lines.append(f"the trace is not complete: {trace.problem}")
    return [*lines, f"recorded in {shown}; to read it: maya trace show {shown}"]


def _made_up(reads: tuple[MadeUpRead, ...]) -> str:
    """Where the script read values that nothing had computed, the most frequent places first."""
    places = [f"{_place(read.at)} ({_number(read.times, 'time')})" for read in reads[:_PLACES_SHOWN]]
    more = "" if len(reads) <= _PLACES_SHOWN else f" and {_number(len(reads) - _PLACES_SHOWN, 'more place')}"
    return f"made-up values, which say nothing about a real run, were read at {', '.join(places)}{more}"


def _place(at: str) -> str:
    """A source line as the trace has it ("/home/me/train.py:33", "" where it is not known), for people."""
    file, _, line = at.rpartition(":")
    return f"{_relative(Path(file))}:{line}" if file else "an unknown line"


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _relative(path: Path) -> str:
    """As short as the user can type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
