"""Files in the Trace Event Format (JSON), which Perfetto, chrome://tracing and HTA read: events -> a gzip file.

The same events give the same bytes: the file holds no file name and no time of writing. It is written atomically
(temporary file, then rename).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maya.util.files import atomic_replacement

Event = dict[str, Any]

_EVENTS_AT_ONCE = 4096


def microseconds(ns: int) -> float:
    """The unit of times in the file; three decimals."""
    return ns / 1000


def span(category: str, name: str, pid: Any, tid: Any, begin_ns: int, end_ns: int, arguments: Event | None) -> Event:
    """An event with a duration."""
    event: Event = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": microseconds(begin_ns),
        "dur": microseconds(end_ns - begin_ns),
    }
    if arguments is not None:
        event["args"] = arguments
    return event


def flow(category: str, number: int, pid: Any, tid: Any, ns: int, *, ends: bool) -> Event:
    """One end of a flow, which viewers draw as an arrow."""
    event: Event = {"ph": "f" if ends else "s", "id": number, "pid": pid, "tid": tid, "ts": microseconds(ns)}
    event |= {"cat": category, "name": category}
    if ends:
        event["bp"] = "e"
    return event


def named(kind: str, pid: Any, tid: Any, key: str, value: Any) -> Event:
    """Metadata: the name, label or sort index of a process or thread."""
    return {"name": kind, "ph": "M", "ts": 0.0, "pid": pid, "tid": tid, "args": {key: value}}


def process(pid: Any, name: str, label: str, place: int) -> list[Event]:
    """The metadata of a process."""
    return [
        named("process_name", pid, 0, "name", name),
        named("process_labels", pid, 0, "labels", label),
        named("process_sort_index", pid, 0, "sort_index", place),
    ]


def thread(pid: Any, tid: Any, name: str, place: int) -> list[Event]:
    """The metadata of a thread."""
    return [named("thread_name", pid, tid, "name", name), named("thread_sort_index", pid, tid, "sort_index", place)]


def write_trace(path: Path, head: Event, events: Iterable[Event], name: str) -> None:
    """Write a file. `head` holds the keys before the events."""
    with (
        atomic_replacement(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as file,
    ):
        # One key a line: HTA looks for the rank line by line.
        lines = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
        file.write(("{\n" + "".join(lines) + '  "traceEvents": [').encode())
        separator = "\n"
        waiting: list[str] = []
        for event in events:
            waiting.append(separator + json.dumps(event))
            separator = ",\n"
            if len(waiting) == _EVENTS_AT_ONCE:
                file.write("".join(waiting).encode())
                waiting.clear()
        file.write(("".join(waiting) + f'\n  ],\n  "traceName": {json.dumps(name)}\n}}\n').encode())
