"""Tables of the kernels and collectives that take most time in one step, over all ranks.

In: a timeline and its steps. Out: a `Table` of each. Times are sums over all ranks. All ranks of a replay group have
the same times, so one column is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline, Timeline
from maya.report.activities import ActivityLabels, call_name, members_of
from maya.report.content import Activity, Table
from maya.results.steps import Steps
from netmodel.collectives.collective import bus_factor

_MOST_KERNELS = 30
_MOST_COLLECTIVES = 30
_BUS_NAMES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
              "AlltoAll": "all_to_all"}  # fmt: skip


@dataclass
class _Sum:
    ns: int = 0
    launches: int = 0
    waited_ns: int = 0

    def add(self, ns: int, launches: int, waited_ns: int = 0) -> None:
        self.ns += ns
        self.launches += launches
        self.waited_ns += waited_ns


def kernel_table(timeline: Timeline, steps: Steps, labels: ActivityLabels, most: int | None = _MOST_KERNELS) -> Table:
    """Kernels, library calls, copies and memsets."""
    sums: dict[Activity, _Sum] = {}
    for group, rows in _of_step(timeline, steps):
        mine = rows[group.rank_class.kernel[rows] >= 0]
        numbers, launches, ns = _by_number(
            group.rank_class.kernel[mine], group.end_ns[mine, 0] - group.start_ns[mine, 0]
        )
        activities = labels.of_kernels(group.rank_class)
        for number, count, total in zip(numbers, launches, ns, strict=True):
            sums.setdefault(activities[number], _Sum()).add(total * len(group.ranks), count * len(group.ranks))
    everything = sum(each.ns for each in sums.values()) or 1
    ordered = sorted(sums.items(), key=lambda entry: (-entry[1].ns, entry[0].name, entry[0].detail))
    return Table(
        ("kernel", "op and sizes", "class", "total", "share", "launches", "each", "origin", "spread"),
        ("text", "text", "text", "ns", "share", "count", "ns", "text", "text"),
        [
            (activity.name, activity.detail, activity.kind.replace("_", "-"), each.ns, round(each.ns / everything, 5),
             each.launches, each.ns // each.launches, activity.origin, activity.spread)
            for activity, each in ordered[:most]
        ],
    )  # fmt: skip


def collective_table(timeline: Timeline, steps: Steps, most: int | None = _MOST_COLLECTIVES) -> Table:
    """Collectives, sends and recvs, by size and number of members."""
    sums: dict[tuple[str, int, int], _Sum] = {}
    for group, rows in _of_step(timeline, steps):
        mine = rows[group.rank_class.call[rows] >= 0]
        calls = group.rank_class.call[mine]
        numbers, launches, ns = _by_number(calls, group.end_ns[mine, 0] - group.start_ns[mine, 0])
        waited = _by_number(calls, group.start_ns[mine, 0] - group.arrival_ns[mine, 0])[2]
        for number, count, total, waited_ns in zip(numbers, launches, ns, waited, strict=True):
            call = group.rank_class.calls[number]
            key = call_name(call), call.size, members_of(call, group.communicators[0])
            ranks = len(group.ranks)
            sums.setdefault(key, _Sum()).add(total * ranks, count * ranks, waited_ns * ranks)
    ordered = sorted(sums.items(), key=lambda entry: (-entry[1].ns - entry[1].waited_ns, entry[0]))
    return Table(
        ("call", "size", "ranks", "total", "calls", "each", "bus bandwidth", "waiting, total", "waiting, each"),
        ("text", "bytes", "count", "ns", "count", "ns", "rate", "ns", "ns"),
        [
            (name, size, members, each.ns, each.launches, each.ns // each.launches,
             _bus_bandwidth(name, size, members, each.ns / each.launches), each.waited_ns,
             each.waited_ns // each.launches)
            for (name, size, members), each in ordered[:most]
        ],
    )  # fmt: skip


def _of_step(timeline: Timeline, steps: Steps) -> Iterator[tuple[GroupTimeline, npt.NDArray[np.intp]]]:
    """For each replay group, the rows that were launched in the typical step."""
    step = steps.typical
    for group, own in zip(timeline.groups, steps.groups, strict=True):
        yield group, np.arange(int(own.rows[step]), int(own.rows[step + 1]), dtype=np.intp)


def _by_number(numbers: npt.NDArray[np.int32], ns: npt.NDArray[np.int64]) -> tuple[list[int], list[int], list[int]]:
    """The distinct numbers, the count of each, and the sum of its times."""
    used, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    sums = np.zeros(len(used), dtype=np.int64)
    np.add.at(sums, which.reshape(-1), ns)
    return used.tolist(), counts.tolist(), sums.tolist()


def _bus_bandwidth(name: str, size: int, members: int, ns: float) -> int:
    """Bus bandwidth as nccl-tests defines it, in bytes per second; 0 for a single member."""
    if members < 2 or ns <= 0:
        return 0
    return round(size / ns * bus_factor(_BUS_NAMES.get(name, ""), members) * 1e9)
