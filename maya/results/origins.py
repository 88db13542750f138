"""Where durations come from: the share of device time by origin, and the kernels and collectives that take most.

In: a `Timeline` and its `Steps`. Out: `Origins`, and `OriginItem`s: kernels and collectives with their time in a step.
Shares are of the summed time on all streams, whether or not something overlaps with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.estimators.features.from_trace import TracedKernel
from maya.estimators.kernel import Origin
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.steps import GroupSteps, Steps
from maya.results.time_classes import CLASSES, TimeClass, classify


@dataclass(frozen=True)
class Origins:
    """Nanoseconds of all ranks in a step (mean over the measured steps)."""

    kernels: dict[Origin, int]  # those that occur, from the best origin to the worst
    network: dict[str, int]  # "fitted", "transferred" or "datasheet"
    spread: float  # expected relative error of a kernel's time, weighted by time

    @property
    def total(self) -> int:
        return sum(self.kernels.values()) + sum(self.network.values())

    def shares(self) -> dict[str, float]:
        """Shares of the total, kernels first."""
        whole = max(self.total, 1)
        found = {origin.value: ns / whole for origin, ns in self.kernels.items()}
        return found | {f"network {origin}": ns / whole for origin, ns in self.network.items()}


@dataclass(frozen=True)
class OriginItem:
    """A kernel or collective of one replay group in a step."""

    what: str  # name of the kernel, or of the function of a library or of NCCL
    op: str
    time_class: TimeClass
    times: int  # in the typical step
    ns: int  # of all of them, on the group's first rank
    origin: str
    detail: str  # shape, dtype, or bytes and ranks


def find_origins(timeline: Timeline, steps: Steps) -> Origins:
    """The origins of the durations in the measured steps."""
    kernels: dict[Origin, int] = dict.fromkeys(Origin, 0)
    network = 0
    spread = 0.0
    count = len(steps.measured)
    for group, own_steps in zip(timeline.groups, steps.groups, strict=True):
        for step in steps.measured:
            rows = _rows(own_steps, step)
            durations = (group.end_ns[rows, 0] - group.start_ns[rows, 0]) * len(group.ranks)
            kernel = group.rank_class.kernel[rows]
            totals = np.zeros(max(len(group.rank_class.kernels), 1), dtype=np.int64)
            np.add.at(totals, kernel[kernel >= 0], durations[kernel >= 0])
            network += int(durations[kernel < 0].sum())
            for estimate, ns in zip(group.rank_class.estimates, totals.tolist(), strict=False):
                kernels[estimate.origin] += ns
                spread += estimate.spread * ns
    total = sum(kernels.values())
    return Origins(
        kernels={origin: ns // count for origin, ns in kernels.items() if ns},
        network={timeline.network_origin: network // count} if network else {},
        spread=spread / total if total else 0.0,
    )


def top_items(timeline: Timeline, steps: Steps, group_number: int, most: int = 20) -> list[OriginItem]:
    """The items that take most time on a replay group's first rank in the typical step. Kernels of one shape are one
    item."""
    group, own_steps = timeline.groups[group_number], steps.groups[group_number]
    rows = _rows(own_steps, steps.typical)
    durations = group.end_ns[rows, 0] - group.start_ns[rows, 0]
    classes = classify(group.rank_class)
    items = []
    for at, (times, ns) in _sums(group.rank_class.kernel[rows], durations).items():
        item, estimate = group.rank_class.kernels[at], group.rank_class.estimates[at]
        first = int(np.flatnonzero(group.rank_class.kernel == at)[0])
        name = item.launch.function if item.launch.what == "kernel" else item.launch.name
        items.append(
            OriginItem(name, item.launch.op, CLASSES[classes[first]], times, ns, estimate.origin.value, _shape(item))
        )
    for at, (times, ns) in _sums(group.rank_class.call[rows], durations).items():
        call = group.rank_class.calls[at]
        detail = f"{call.size} B {call.dtype}, {_ranks(group, call.communicator)} ranks"
        items.append(OriginItem(call.call, "", TimeClass.COMMUNICATION, times, ns, timeline.network_origin, detail))
    return sorted(items, key=lambda item: (-item.ns, item.what, item.op, item.detail))[:most]


def _rows(steps: GroupSteps, step: int) -> slice:
    return slice(int(steps.rows[step]), int(steps.rows[step + 1]))


def _sums(which: npt.NDArray[np.int32], durations: npt.NDArray[np.int64]) -> dict[int, tuple[int, int]]:
    """For each number that occurs: its count and total duration."""
    chosen = which >= 0
    numbers, at, counts = np.unique(which[chosen], return_inverse=True, return_counts=True)
    totals = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(totals, at.reshape(-1), durations[chosen])
    return dict(zip(numbers.tolist(), zip(counts.tolist(), totals.tolist(), strict=True), strict=True))


def _shape(item: TracedKernel) -> str:
    sizes = " ".join(f"{name}={value:.0f}" for name, value in item.kernel.shape.items())
    return " ".join(filter(None, [item.kernel.kernel_class.value, item.kernel.variant, item.kernel.dtype, sizes]))


def _ranks(group: GroupTimeline, communicator: int) -> int:
    first: Sequence[int] = group.communicators[0].get(communicator, ()) if group.communicators else ()
    return len(first)
