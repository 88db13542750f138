"""The streams of a rank on the page.

In: a rank's column of a `GroupTimeline`, and the part of the run to show. Out: `StreamsView` with a limited number of
events. The collectives of one NCCL group are one event, as they are one kernel. If there are too many events, short
adjacent ones of the same time class are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from maya.replay.timeline import GroupTimeline
from maya.report.activities import ActivityLabels
from maya.report.content import Activity, StreamsView, Track
from maya.util.arrays import Booleans

_FIRST_JOINED_NS = 1_000


@dataclass(frozen=True)
class _Event:
    start: int
    end: int
    activity: Activity
    launched: int
    arrival: int
    count: int = 1


def streams_of(
    group: GroupTimeline,
    column: int,
    span: tuple[int, int],
    steps: Sequence[tuple[int, int]],
    labels: ActivityLabels,
    most_events: int,
) -> StreamsView:
    """The streams of one rank between two times. `steps` are numbers of steps and their end times."""
    first, last = span
    tracks = {stream: _grouped(events) for stream, events in _events(group, column, first, last, labels).items()}
    joined = 0
    while sum(map(len, tracks.values())) > most_events:
        joined = joined * 2 or _FIRST_JOINED_NS
        tracks = {stream: _joined(events, joined) for stream, events in tracks.items()}
    drawn = [Track(f"stream {stream}", _numbers(events, first, labels)) for stream, events in sorted(tracks.items())]
    return StreamsView(int(group.ranks[column]), first, last, tuple(steps), drawn, joined)


def count_events(group: GroupTimeline, column: int, span: tuple[int, int]) -> int:
    """The number of events between two times."""
    return int(_inside(group, column, *span).sum())


def _inside(group: GroupTimeline, column: int, first: int, last: int) -> Booleans:
    found: Booleans = (group.end_ns[:, column] > first) & (group.start_ns[:, column] < last)
    return found


def _events(
    group: GroupTimeline, column: int, first: int, last: int, labels: ActivityLabels
) -> dict[int, list[_Event]]:
    rank_class = group.rank_class
    kernels, calls = labels.of_kernels(rank_class), labels.of_calls(rank_class, group.communicators[column])
    rows = np.flatnonzero(_inside(group, column, first, last))
    streams = rank_class.trace.records["stream"][rank_class.records[rows]]
    table = zip(
        streams.tolist(),
        np.maximum(group.start_ns[rows, column], first).tolist(),
        np.minimum(group.end_ns[rows, column], last).tolist(),
        rank_class.kernel[rows].tolist(),
        rank_class.call[rows].tolist(),
        group.launched_ns[rows, column].tolist(),
        group.arrival_ns[rows, column].tolist(),
        strict=True,
    )
    found: dict[int, list[_Event]] = {}
    for stream, start, end, kernel, call, launched, arrival in table:
        activity = kernels[kernel] if call < 0 else calls[call]
        found.setdefault(stream, []).append(_Event(start, end, activity, launched, max(first, arrival)))
    for events in found.values():
        events.sort(key=lambda event: (event.start, event.end))
    return found


def _grouped(events: Sequence[_Event]) -> list[_Event]:
    """Join events that overlap on one stream: they were in one NCCL group."""
    found: list[_Event] = []
    for event in events:
        if found and event.start < found[-1].end:
            found[-1] = _together(found[-1], event, "in one group")
        else:
            found.append(event)
    return found


def _joined(events: Sequence[_Event], short: int) -> list[_Event]:
    found: list[_Event] = []
    for event in events:
        before = found[-1] if found else None
        if (
            before is not None
            and before.activity.kind == event.activity.kind
            and event.end - event.start < short
            and (before.count > 1 or before.end - before.start < short)
            and event.arrival - before.end < short
        ):
            found[-1] = _together(before, event, "in a row")
        else:
            found.append(event)
    return found


def _together(one: _Event, other: _Event, how: str) -> _Event:
    count = one.count + other.count
    name = one.activity.name.partition(" × ")[0]
    same = name == other.activity.name
    activity = Activity(
        f"{name if same else one.activity.kind} × {count}", one.activity.kind, how, one.activity.origin, ""
    )
    return replace(
        one, end=max(one.end, other.end), activity=activity, arrival=min(one.arrival, other.arrival), count=count
    )


def _numbers(events: Sequence[_Event], first: int, labels: ActivityLabels) -> list[int]:
    """Five numbers for each event, see `Track`."""
    numbers: list[int] = []
    before = first
    for event in events:
        waited = max(0, event.start - event.arrival)
        lead = event.start - waited - event.launched
        numbers += (event.start - before, event.end - event.start, labels.number(event.activity), lead, waited)
        before = event.end
    return numbers
