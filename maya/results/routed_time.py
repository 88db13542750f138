"""The share of device time that hangs on the routing that Maya assumed.

In: a `Timeline` and its `Steps`. Out: `RoutedTime`. Kernels, library calls, copies and collectives have the flag
ROUTED if they work on rows of activations that a choice by rule has picked, or on such choices themselves
(rank_runtime/observer/routed_ops.h). With other choices, their sizes or contents would be others. Times are summed over
all streams, whether or not something overlaps with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from maya.replay.timeline import Timeline
from maya.results.steps import Steps
from maya.trace import Flag, count_records


@dataclass(frozen=True)
class RoutedTime:
    """Nanoseconds of all ranks in a step (mean over the measured steps)."""

    kernels_ns: int
    network_ns: int
    total_ns: int  # of all kernels and collectives, routed or not

    @property
    def share(self) -> float:
        return (self.kernels_ns + self.network_ns) / max(self.total_ns, 1)


def find_routed_time(timeline: Timeline, steps: Steps) -> RoutedTime | None:
    """The routed time in the measured steps; None: no choice by rule routes."""
    traces = (rank_class.trace for rank_class in timeline.rank_classes)
    if not any(choice.routes for trace in traces for choice in count_records(trace).choices):
        return None
    kernels = network = total = 0
    count = max(len(steps.measured), 1)
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        records = group.rank_class.trace.records
        routed = (records["flags"][group.rank_class.records] & Flag.ROUTED) != 0
        for step in steps.measured:
            rows = slice(int(own_steps.rows[step]), int(own_steps.rows[step + 1]))
            durations = (group.end_ns[rows, 0] - group.start_ns[rows, 0]) * len(group.ranks)
            is_kernel = group.rank_class.kernel[rows] >= 0
            kernels += int(durations[routed[rows] & is_kernel].sum())
            network += int(durations[routed[rows] & ~is_kernel].sum())
            total += int(durations.sum())
    return RoutedTime(kernels // count, network // count, total // count)
