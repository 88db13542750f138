"""How long a collective takes that has the network to itself.

In: a `Topology`, NCCL's settings, and collectives. Out: an `Estimate` each. Whatever depends on the group alone is
worked out once: ranges of sizes with their plans; after that an answer is a look-up and a few multiplications.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netmodel import tuner
from netmodel.algorithms import Group, make_group, plan_collective, plan_messages
from netmodel.algorithms import messages as p2p
from netmodel.collective import OPERATIONS, Collective, Estimate
from netmodel.nccl_settings import NcclSettings
from netmodel.plan import Plan
from netmodel.topology import Topology


@dataclass(frozen=True)
class _Ranges:
    """Plans by size: plan i from starts[i] on."""

    starts: Sequence[int]
    plans: Sequence[Plan]

    def plan(self, size: int) -> Plan:
        return self.plans[bisect_right(self.starts, size) - 1]


class AnalyticNetwork:
    """A cluster's network that answers one collective at a time."""

    def __init__(self, topology: Topology, settings: NcclSettings | None = None) -> None:
        self.topology = topology
        self.settings = settings or NcclSettings()
        self.parameters = topology.cluster.parameters
        self._groups: dict[tuple[int, ...], Group] = {}
        self._ranges: dict[object, _Ranges] = {}

    def estimate(self, collective: Collective) -> Estimate:
        """How long a collective takes."""
        size = collective.size
        plan = self.plan(collective)
        return Estimate(
            ns=round(plan.duration_ns(size)),
            algorithm=plan.algorithm,
            protocol=plan.protocol,
            channels=plan.channels,
            latency_ns=round(plan.latency_ns),
            origin=self.parameters.origin,
        )

    def plan(self, collective: Collective) -> Plan:
        """How NCCL would carry out a collective."""
        key = (collective.operation, collective.members, collective.root, collective.dtype)
        if collective.transfers:
            return self._transfer_plan(collective)
        ranges = self._ranges.get(key)
        if ranges is None:
            _check(collective)
            ranges = self._ranges[key] = self._compile(collective)
        return ranges.plan(collective.size)

    def _group(self, members: tuple[int, ...]) -> Group:
        if members not in self._groups:
            self._groups[members] = make_group(self.topology, members)
        return self._groups[members]

    def _compile(self, collective: Collective) -> _Ranges:
        group = self._group(tuple(sorted(set(collective.members))))
        if len(group.members) == 1:
            return _Ranges([0], [self._alone()])
        if collective.operation == "all_to_all":
            return self._message_ranges(group, p2p.all_pairs(group.members))
        if collective.operation == "send_recv":
            return self._message_ranges(group, p2p.neighbours(collective.members))
        choices = tuner.tune(group, self.parameters.generation, collective.operation, self.settings, collective.dtype)
        root = collective.members[collective.root]
        starts, plans, made = [], [], {}
        floor = 0.0
        for place, (start, choice) in enumerate(choices):
            if choice not in made:
                made[choice] = plan_collective(
                    group,
                    self.parameters,
                    collective.operation,
                    choice.algorithm,
                    choice.protocol,
                    choice.channels,
                    root,
                )
            plan = replace(made[choice], floor_ns=floor)
            starts.append(start)
            plans.append(plan)
            if place + 1 < len(choices):
                floor = plan.duration_ns(choices[place + 1][0] - 1)
        return _Ranges(starts, plans)

    def _message_ranges(self, group: Group, messages: p2p.Messages) -> _Ranges:
        """A range for LL, and one for every number of channels."""
        largest = messages.largest
        starts = [0, math.floor(p2p.LL_LARGEST / largest) + 1]
        channels = p2p.channels_per_peer(len(group.members), 0)
        while channels < p2p.CHANNELS:
            channels *= 2
            starts.append(max(starts[-1] + 1, math.ceil(channels * p2p.BYTES_PER_CHANNEL / largest)))
        plans: list[Plan] = []
        for place, start in enumerate(starts):
            floor = plans[-1].duration_ns(start - 1) if plans else 0.0
            plans.append(replace(self._message_plan(group, messages, start * largest, ll=place == 0), floor_ns=floor))
        return _Ranges(starts, plans)

    def _message_plan(self, group: Group, messages: p2p.Messages, largest: float, *, ll: bool) -> Plan:
        members, domains = len(group.members), len(group.domains)
        channels = p2p.channels_per_peer(members, largest)
        if self.settings.max_channels:
            channels = min(channels, self.settings.max_channels)
        network = self.settings.channels_per_net_peer or p2p.network_channels_per_peer(members, domains)
        return plan_messages(
            group,
            self.parameters,
            messages,
            "ll" if ll else "simple",
            pxn=self.settings.pxn,
            channels=channels,
            net_channels=network,
        )

    def _transfer_plan(self, collective: Collective) -> Plan:
        """Messages of given sizes. Their proportions and the channels of the largest decide the plan."""
        total = sum(transfer.size for transfer in collective.transfers)
        largest = max(transfer.size for transfer in collective.transfers)
        ll = largest <= p2p.LL_LARGEST
        channels = p2p.channels_per_peer(len(collective.members), largest)
        proportions = tuple((part.source, part.target, part.size / (total or 1)) for part in collective.transfers)
        key = (collective.members, proportions, ll, channels)
        if key not in self._ranges:
            _check(collective)
            group = self._group(tuple(sorted(set(collective.members))))
            ranks = collective.members
            sent = [part for part in proportions if part[0] != part[1]]
            messages = p2p.Messages(
                np.array([ranks[source] for source, _, _ in sent], np.int64),
                np.array([ranks[target] for _, target, _ in sent], np.int64),
                np.array([share for _, _, share in sent]),
            )
            plan = self._message_plan(group, messages, largest, ll=ll) if sent else self._alone()
            self._ranges[key] = _Ranges([0], [plan])
        return self._ranges[key].plans[0]

    def _alone(self) -> Plan:
        """One member: a copy in its own memory, which costs a launch and is not the network's."""
        launch = self.parameters.simple.launch_ns
        return Plan("ring", "simple", 1, (), np.ones(3), 0.0, launch, 0.0, 0.0)


def _check(collective: Collective) -> None:
    if collective.operation not in OPERATIONS:
        raise ValueError(f'"{collective.operation}" is not an operation; use one of {", ".join(OPERATIONS)}')
    if not collective.members:
        raise ValueError(f"{collective.operation}: a collective needs at least one member")
    if not 0 <= collective.root < len(collective.members):
        raise ValueError(
            f"{collective.operation}: root {collective.root} is not a place among {len(collective.members)} members"
        )
    for part in collective.transfers:
        if not (0 <= part.source < len(collective.members) and 0 <= part.target < len(collective.members)):
            raise ValueError(
                f"{collective.operation}: a transfer from {part.source} to {part.target} names places that "
                f"{len(collective.members)} members do not have"
            )
