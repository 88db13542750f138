"""The duration of a collective that has the network to itself.

In: a `Topology`, NCCL's settings, and collectives. Out: a `CollectiveEstimate` each. The ranges of sizes and their
plans depend on the group alone and are computed once; after that an estimate is a look-up and a few multiplications.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from netmodel.collectives import tuner
from netmodel.collectives.algorithms import (
    CollectiveSchedule,
    RankGroup,
    RoutedTransfers,
    collective_schedule,
    make_group,
    make_plan,
    p2p,
    p2p_schedule,
    route_p2p,
)
from netmodel.collectives.algorithms.common import with_fewer_channels
from netmodel.collectives.algorithms.p2p_routes import P2PTransfers
from netmodel.collectives.collective import OPERATIONS, Collective, CollectiveEstimate
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.collectives.plan import Plan
from netmodel.topology import Topology

_MOST_RECENT = 4096


class _Ranges:
    """Plans by size: plan i from starts[i] on. They are made when a size needs them, in ascending order, because a plan
    never takes less time than those of smaller sizes."""

    def __init__(self, starts: Sequence[int], make: Callable[[int, Sequence[Plan]], tuple[CollectiveSchedule, Plan]]):
        """`make`: the schedule and the plan of a place, from the plans before it."""
        self._starts = starts
        self._make = make
        self._schedules: list[CollectiveSchedule] = []
        self._plans: list[Plan] = []

    def find(self, size: int) -> tuple[CollectiveSchedule, Plan]:
        place = bisect_right(self._starts, size) - 1
        while len(self._plans) <= place:
            schedule, plan = self._make(len(self._plans), self._plans)
            self._schedules.append(schedule)
            self._plans.append(plan)
        return self._schedules[place], self._plans[place]


class AnalyticNetwork:
    """A cluster's network that runs one collective at a time."""

    def __init__(self, topology: Topology, settings: NcclSettings | None = None) -> None:
        self.topology = topology
        self.settings = settings or NcclSettings()
        self.parameters = topology.cluster.parameters
        self._groups: dict[tuple[int, ...], RankGroup] = {}
        self._ranges: dict[object, _Ranges] = {}
        self._tuned: dict[object, Sequence[tuple[int, tuner.Choice]]] = {}
        # Keyed by the id of `members`, because hashing a thousand ranks takes longer than the rest of an estimate. The
        # tuples are kept, so that no other object gets the same id.
        self._recent: dict[tuple[str, int, int, str], tuple[tuple[int, ...], _Ranges]] = {}

    def estimate(self, collective: Collective) -> CollectiveEstimate:
        """The duration of a collective."""
        size = collective.size
        plan = self.plan(collective)
        return CollectiveEstimate(
            ns=round(plan.duration_ns(size)),
            algorithm=plan.algorithm,
            protocol=plan.protocol,
            channels=plan.channels,
            latency_ns=round(plan.latency_ns),
            origin=self.parameters.origin,
        )

    def plan(self, collective: Collective) -> Plan:
        """The plan by which NCCL would carry out a collective."""
        return self._find(collective).find(collective.size)[1]

    def schedule_and_plan(self, collective: Collective) -> tuple[CollectiveSchedule, Plan]:
        """The plan, and the schedule that it was made from."""
        return self._find(collective).find(collective.size)

    def _find(self, collective: Collective) -> _Ranges:
        if collective.transfers:
            return self._transfer_ranges(collective)
        recent = collective.operation, id(collective.members), collective.root, collective.dtype
        if recent in self._recent:
            return self._recent[recent][1]
        key = (collective.operation, collective.members, collective.root, collective.dtype)
        ranges = self._ranges.get(key)
        if ranges is None:
            _check(collective)
            ranges = self._ranges[key] = self._compile(collective)
        if len(self._recent) >= _MOST_RECENT:
            self._recent.clear()
        self._recent[recent] = collective.members, ranges
        return ranges

    def group(self, members: tuple[int, ...]) -> RankGroup:
        """The group of these GPUs, in ascending order."""
        if members not in self._groups:
            self._groups[members] = make_group(self.topology, members, self.settings.max_channels)
        return self._groups[members]

    def _compile(self, collective: Collective) -> _Ranges:
        group = self.group(tuple(sorted(set(collective.members))))
        if len(group.members) == 1:
            return self._alone()
        if collective.operation == "all_to_all":
            return self._p2p_ranges(group, p2p.all_pairs(group.members))
        if collective.operation == "send_recv":
            return self._p2p_ranges(group, p2p.neighbours(collective.members))
        choices = self.choices(group, collective.operation, collective.dtype)
        root = collective.members[collective.root]
        schedules: dict[tuple[str, str], CollectiveSchedule] = {}

        def make(place: int, smaller: Sequence[Plan]) -> tuple[CollectiveSchedule, Plan]:
            start, choice = choices[place]
            way = choice.algorithm, choice.protocol
            if way not in schedules:
                schedule = collective_schedule(group, collective.operation, *way, root)
                if 0 < self.settings.max_channels <= choice.channels:
                    schedule = with_fewer_channels(
                        schedule, choice.algorithm, collective.operation, len(group.members), choice.channels
                    )
                schedules[way] = schedule
            return schedules[way], self._plan(schedules[way], *way, choice.channels, smaller, start)

        return _Ranges([start for start, _ in choices], make)

    def choices(self, group: RankGroup, operation: str, dtype: str) -> Sequence[tuple[int, tuner.Choice]]:
        """The tuner's choices, which depend only on the group's shape."""
        key = (*group.shape, operation, dtype)
        if key not in self._tuned:
            self._tuned[key] = tuner.tune(group, self.parameters.generation, operation, self.settings, dtype)
        return self._tuned[key]

    def _p2p_ranges(self, group: RankGroup, transfers: P2PTransfers) -> _Ranges:
        largest = transfers.largest
        starts = _p2p_starts(len(group.members), largest)
        routed = route_p2p(group, transfers, pxn=self.settings.pxn)

        def make(place: int, smaller: Sequence[Plan]) -> tuple[CollectiveSchedule, Plan]:
            schedule, channels = self._p2p_schedule(group, routed, starts[place] * largest)
            protocol = "simple" if place else "ll"
            return schedule, self._plan(schedule, "p2p", protocol, channels, smaller, starts[place])

        return _Ranges(starts, make)

    def _p2p_schedule(
        self, group: RankGroup, routed: RoutedTransfers, largest: float
    ) -> tuple[CollectiveSchedule, int]:
        """The schedule of transfers of at most `largest` bytes, and how many channels a GPU keeps busy."""
        members, domains = len(group.members), len(group.domains)
        channels = p2p.channels_per_peer(members, largest)
        if self.settings.max_channels:
            channels = min(channels, self.settings.max_channels)
        network = self.settings.channels_per_net_peer or p2p.network_channels_per_peer(members, domains)
        schedule = p2p_schedule(routed, channels=channels, net_channels=network)
        busy = channels * schedule.gpu_steps + network * schedule.network_steps  # of the busiest sender
        return schedule, int(min(p2p.CHANNELS, busy))

    def _plan(
        self,
        schedule: CollectiveSchedule,
        algorithm: str,
        protocol: str,
        channels: int,
        smaller: Sequence[Plan],
        start: int,
    ) -> Plan:
        """The plan for sizes from `start` on; `smaller` are the plans below it."""
        plan = make_plan(self.topology, self.parameters, schedule, algorithm, protocol, channels)
        return replace(plan, floor_ns=smaller[-1].duration_ns(start - 1)) if smaller else plan

    def _transfer_ranges(self, collective: Collective) -> _Ranges:
        """Ranges of transfers of given sizes, whose proportions decide the plans."""
        total = sum(transfer.size for transfer in collective.transfers)
        proportions = tuple((part.source, part.target, part.size / (total or 1)) for part in collective.transfers)
        sent = [part for part in proportions if part[0] != part[1] and part[2]]
        if not sent:
            _check(collective)
            return self._alone()
        key = (collective.members, proportions)
        if key not in self._ranges:
            _check(collective)
            ranks = np.array(collective.members, np.int64)
            source, target, share = (np.array(column) for column in zip(*sent, strict=True))
            group = self.group(tuple(sorted(set(collective.members))))
            self._ranges[key] = self._p2p_ranges(group, P2PTransfers(ranks[source], ranks[target], share))
        return self._ranges[key]

    def _alone(self) -> _Ranges:
        """One member: a copy in its own memory, which costs a launch and no network time."""
        schedule = CollectiveSchedule((), 0, 0, 0)
        return _Ranges([0], lambda _, smaller: (schedule, self._plan(schedule, "ring", "simple", 1, smaller, 0)))


def _p2p_starts(members: int, largest: float) -> list[int]:
    """Sizes where ranges start: one for LL, one for every number of channels. `largest`: the largest transfer's
    share."""
    starts = [0, math.floor(p2p.LL_LARGEST / largest) + 1]
    channels = p2p.channels_per_peer(members, 0)
    while channels < p2p.CHANNELS:
        starts.append(max(starts[-1] + 1, math.floor(channels * p2p.BYTES_PER_CHANNEL / largest) + 1))
        channels *= 2
    return starts


def _check(collective: Collective) -> None:
    if collective.operation not in OPERATIONS:
        raise ValueError(f'"{collective.operation}" is not an operation; use one of {", ".join(OPERATIONS)}')
    if not collective.members:
        raise ValueError(f"{collective.operation}: a collective needs at least one member")
    if not 0 <= collective.root < len(collective.members):
        raise ValueError(
            f"{collective.operation}: root {collective.root} is not a place among {len(collective.members)} members"
        )
    total = sum(part.size for part in collective.transfers)
    if collective.transfers and collective.size != total:
        raise ValueError(
            f"{collective.operation}: size is {collective.size} and its transfers are of {total} bytes; give their sum"
        )
    for part in collective.transfers:
        if not (0 <= part.source < len(collective.members) and 0 <= part.target < len(collective.members)):
            raise ValueError(
                f"{collective.operation}: a transfer from {part.source} to {part.target} names places that "
                f"{len(collective.members)} members do not have"
            )
