"""The whole cluster in one trace file: cluster_trace.json.gz, for Perfetto.

In: a `Result`. Out: a file with a process for each of up to 64 ranks: one of each replay group (ranks that did the same
at the same times), with the median and the slowest rank among them. Its threads are streams. Kernels that follow each
other closely are one event; collectives are events of their own, with the waiting before them. The file holds the last
measured steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline
from maya.results.kineto_window import group_of, stream_number
from maya.results.result import Result
from maya.results.time_classes import CLASSES, TITLES, classify
from maya.results.trace_events import Event, process, span, thread, write_trace
from maya.util.arrays import Indices
from maya.util.ranks import ranges

NAME = "cluster_trace.json.gz"
MOST_RANKS = 64
_MOST_STEPS = 2
_CLOSELY = 10_000  # ns between kernels that become one event; more if a stream had more events than
_MOST_EVENTS = 1000
_STEPS_THREAD = 1  # streams have higher numbers


def write_cluster_trace(result: Result, folder: Path) -> Path:
    """Write the file into a run's folder."""
    path = folder / NAME
    timeline = result.timeline
    head: Event = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "world_size": timeline.world_size,
        "gpu": timeline.device.name,
        "cluster": timeline.settings.cluster,
    }
    write_trace(path, head, _events(result), NAME.removesuffix(".gz"))
    return path


def drawn_ranks(result: Result) -> list[int]:
    """The ranks in the file, in order."""
    first = [
        result.breakdown.median_rank,
        result.breakdown.slowest.rank,
        *(int(group.ranks[0]) for group in _largest(result)),
    ]
    seen: dict[int, int] = {}  # by replay group
    for rank in first:
        group = next((group for group in result.timeline.groups if rank in group.ranks), None)
        if group is not None and len(seen) < MOST_RANKS:
            seen.setdefault(id(group), rank)
    return sorted(seen.values())


def _largest(result: Result) -> list[GroupTimeline]:
    """The replay groups, largest first."""
    return sorted(result.timeline.groups, key=lambda group: (-len(group.ranks), int(group.ranks[0])))


def _events(result: Result) -> Iterator[Event]:
    measured = result.steps.measured
    steps = range(max(measured[0], measured[-1] - _MOST_STEPS + 1), measured[-1] + 1)
    number_of = {id(group): number for number, group in enumerate(result.timeline.groups)}
    for rank in drawn_ranks(result):
        group = group_of(result.timeline, rank)
        others = len(group.ranks) - 1
        label = f"like it: {ranges(group.ranks.tolist())}" if others else ""
        node = rank // result.timeline.settings.ranks_per_node
        yield from process(rank, f"rank {rank} (node {node})" + (f" and {others} more" if others else ""), label, rank)
        bounds = result.steps.groups[number_of[id(group)]].bounds_ns
        yield from thread(rank, _STEPS_THREAD, "steps", _STEPS_THREAD)
        for step in steps:
            times = int(bounds[step]), int(bounds[step + 1])
            yield span("step", f"step {step}", rank, _STEPS_THREAD, *times, _times_by_class(result, rank, step))
        yield from _streams(group, rank, int(bounds[steps.start]), int(bounds[steps.stop]))


def _times_by_class(result: Result, rank: int, step: int) -> Event:
    """Microseconds by time class."""
    found = zip(CLASSES, result.breakdown.ns[rank, step].tolist(), strict=True)
    return {TITLES[name]: ns / 1000 for name, ns in found if ns}


def _streams(group: GroupTimeline, rank: int, begin: int, end: int) -> Iterator[Event]:
    rank_class = group.rank_class
    arrival, start, stop = (array[:, 0] for array in (group.arrival_ns, group.start_ns, group.end_ns))
    inside = np.flatnonzero((stop > begin) & (arrival < end) & (stop > arrival))
    streams = rank_class.trace.records["stream"][rank_class.records]
    classes = classify(rank_class)
    for stream in np.unique(streams[inside]).tolist():
        row = stream_number(stream)
        rows = inside[streams[inside] == stream]
        yield from thread(rank, row, f"stream {row}", row)
        is_call = rank_class.call[rows] >= 0
        yield from _joined_kernels(rank, row, rows[~is_call], classes, group)
        for at in rows[is_call].tolist():
            call = rank_class.calls[int(rank_class.call[at])]
            if start[at] > arrival[at]:
                yield span("wait", "wait", rank, row, int(arrival[at]), int(start[at]), {"for": call.call})
            if stop[at] > start[at]:
                arguments = {"bytes": call.size, "dtype": call.dtype, "communicator": call.communicator}
                yield span("communication", call.call, rank, row, int(start[at]), int(stop[at]), arguments)


def _joined_kernels(
    rank: int, stream: int, rows: Indices, classes: npt.NDArray[np.int8], group: GroupTimeline
) -> Iterator[Event]:
    """Kernels that follow each other closely, as one event. The distance grows until the events are few enough."""
    if not len(rows):
        return
    start, stop, kinds = group.start_ns[rows, 0], group.end_ns[rows, 0], classes[rows]
    gaps = start[1:] - stop[:-1]
    closely = _CLOSELY
    while (gaps > closely).sum() > _MOST_EVENTS:
        closely *= 2
    firsts = np.flatnonzero(np.concatenate(([True], gaps > closely)))
    lasts = np.append(firsts[1:], len(rows)) - 1
    by_class = [
        (TITLES[name], np.add.reduceat(np.where(kinds == number, stop - start, 0), firsts).tolist())
        for number, name in enumerate(CLASSES)
        if (kinds == number).any()
    ]
    for at, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        busy = {title: ns[at] / 1000 for title, ns in by_class if ns[at]}
        name = next(iter(busy)) if len(busy) == 1 else "compute"
        arguments = {"kernels": last - first + 1, **busy}
        yield span("compute", name, rank, stream, int(start[first]), int(stop[last]), arguments)
