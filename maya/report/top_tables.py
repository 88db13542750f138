"""The kernels and collectives that take most time in one step, over all ranks.

In: a timeline and its steps. Out: totals as plain figures, and a `Table` of each for the page. Times are sums over all
ranks. All ranks of a replay group have the same times, so one column is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import Estimate
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
class KernelTotal:
    """All launches of a kernel, library call, copy or memset with the same sizes."""

    activity: Activity
    estimate: Estimate
    ns: int = 0
    launches: int = 0


@dataclass
class CollectiveTotal:
    """All calls of a collective, send or recv with the same size and number of members."""

    name: str
    size: int
    members: int
    ns: int = 0
    launches: int = 0
    waited_ns: int = 0

    @property
    def bus_bytes_per_second(self) -> int:
        """Bus bandwidth as nccl-tests defines it; 0 for a single member."""
        if self.members < 2 or self.ns <= 0:
            return 0
        factor = bus_factor(_BUS_NAMES.get(self.name, ""), self.members)
        return round(self.size / (self.ns / self.launches) * factor * 1e9)


def kernel_totals(timeline: Timeline, steps: Steps, labels: ActivityLabels) -> list[KernelTotal]:
    """The longest first."""
    totals: dict[Activity, KernelTotal] = {}
    for group, rows in _of_step(timeline, steps):
        mine = rows[group.rank_class.kernel[rows] >= 0]
        numbers, launches, ns = _by_number(
            group.rank_class.kernel[mine], group.end_ns[mine, 0] - group.start_ns[mine, 0]
        )
        activities = labels.of_kernels(group.rank_class)
        for number, count, sum_ns in zip(numbers, launches, ns, strict=True):
            activity = activities[number]
            total = totals.setdefault(activity, KernelTotal(activity, group.rank_class.estimates[number]))
            total.ns += sum_ns * len(group.ranks)
            total.launches += count * len(group.ranks)
    return sorted(totals.values(), key=lambda each: (-each.ns, each.activity.name, each.activity.detail))


def kernel_table(timeline: Timeline, steps: Steps, labels: ActivityLabels) -> Table:
    """Kernels, library calls, copies and memsets."""
    totals = kernel_totals(timeline, steps, labels)
    everything = sum(each.ns for each in totals) or 1
    return Table(
        ("kernel", "op and sizes", "class", "total", "share", "launches", "each", "origin", "spread"),
        ("text", "text", "text", "ns", "share", "count", "ns", "text", "text"),
        [
            (each.activity.name, each.activity.detail, each.activity.kind.replace("_", "-"), each.ns,
             round(each.ns / everything, 5), each.launches, each.ns // each.launches, each.activity.origin,
             each.activity.spread)
            for each in totals[:_MOST_KERNELS]
        ],
    )  # fmt: skip


def collective_totals(timeline: Timeline, steps: Steps) -> list[CollectiveTotal]:
    """The longest first, with the time that ranks wait for each other."""
    totals: dict[tuple[str, int, int], CollectiveTotal] = {}
    for group, rows in _of_step(timeline, steps):
        mine = rows[group.rank_class.call[rows] >= 0]
        calls = group.rank_class.call[mine]
        numbers, launches, ns = _by_number(calls, group.end_ns[mine, 0] - group.start_ns[mine, 0])
        waited = _by_number(calls, group.start_ns[mine, 0] - group.arrival_ns[mine, 0])[2]
        for number, count, sum_ns, waited_ns in zip(numbers, launches, ns, waited, strict=True):
            call = group.rank_class.calls[number]
            key = call_name(call), call.size, members_of(call, group.communicators[0])
            total = totals.setdefault(key, CollectiveTotal(*key))
            total.ns += sum_ns * len(group.ranks)
            total.launches += count * len(group.ranks)
            total.waited_ns += waited_ns * len(group.ranks)
    return [
        total for _, total in sorted(totals.items(), key=lambda entry: (-entry[1].ns - entry[1].waited_ns, entry[0]))
    ]


def collective_table(timeline: Timeline, steps: Steps) -> Table:
    """Collectives, sends and recvs, by size and number of members."""
    return Table(
        ("call", "size", "ranks", "total", "calls", "each", "bus bandwidth", "waiting, total", "waiting, each"),
        ("text", "bytes", "count", "ns", "count", "ns", "rate", "ns", "ns"),
        [
            (each.name, each.size, each.members, each.ns, each.launches, each.ns // each.launches,
             each.bus_bytes_per_second, each.waited_ns, each.waited_ns // each.launches)
            for each in collective_totals(timeline, steps)[:_MOST_COLLECTIVES]
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
