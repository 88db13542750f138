"""The flow level: collectives that are in flight at the same time share the links of the topology.

In: collectives and when they start, in integer nanoseconds. Out: when each of them ends.

A collective first waits for its plan's overhead; then the plan's flows begin, and each moves the collective's size at a
rate that is max-min fair among all flows in flight. The collective ends with the last of its flows. Rates change only
when a flow begins or ends, and only among flows that shared links connect with it: these form a group (flow_group.py),
and groups are independent of each other.

There are two ways to use it. `simulate` runs a list of starts to the end. Or step by step, next to another simulation:
`start` a collective, ask for the `next_event`, `advance` to it or to any earlier time, start more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from netmodel.collectives.analytic import AnalyticNetwork
from netmodel.collectives.collective import Collective, CollectiveEstimate
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.collectives.plan import Plan
from netmodel.flow.demand import Demand, Links, demand_of
from netmodel.flow.flow_group import FlowGroup, InFlight
from netmodel.topology import Topology

_MOST_DEMANDS = 4096  # cache limit: sends of new sizes keep making new plans


class Planner(Protocol):
    """Chooses how a collective is carried out."""

    def plan(self, collective: Collective) -> Plan:
        """The same plan object for the same choice, so that a plan's demand is computed once."""
        ...


@dataclass(frozen=True)
class Finished:
    """A collective that ended."""

    number: int  # as `start` gave it
    collective: Collective
    plan: Plan
    start_ns: int
    end_ns: int
    alone_ns: int  # its duration with the network to itself

    @property
    def ns(self) -> int:
        """Its duration."""
        return self.end_ns - self.start_ns


class FlowNetwork:
    """A network with its clock and the collectives in flight."""

    def __init__(
        self,
        topology: Topology,
        settings: NcclSettings | None = None,
        *,
        planner: Planner | None = None,
        shortcut: bool = True,
    ) -> None:
        """Plans come from `planner`, by default the analytic level with the same settings. Without `shortcut`, rates
        are computed even for collectives that share no links.
        """
        self._planner = planner or AnalyticNetwork(topology, settings)
        self._origin = topology.cluster.parameters.origin
        self._shortcut = shortcut
        self._links = Links.of(topology)
        self._demands: dict[int, tuple[Plan, Demand]] = {}  # by the plan's id; the plan is kept, so its id stays unique
        self._now = 0
        self._started = 0
        self._waiting: list[tuple[int, int, InFlight]] = []  # heap: collectives whose flows have not begun
        self._groups: dict[int, FlowGroup] = {}
        self._group_of = np.full(len(self._links.bytes_per_ns), -1, np.int64)  # by link; the group may have ended
        self._groups_made = 0
        self._ends: list[tuple[int, int, int]] = []  # heap: when a group's next flow ends, the group, its version

    @property
    def now(self) -> int:
        """The time up to which everything is known."""
        return self._now

    def estimate(self, collective: Collective) -> CollectiveEstimate:
        """The duration with the network to itself, from the analytic level."""
        plan = self._planner.plan(collective)
        ns, latency = round(plan.duration_ns(collective.size)), round(plan.latency_ns)
        return CollectiveEstimate(ns, plan.algorithm, plan.protocol, plan.channels, latency, self._origin)

    def start(self, at: int, collective: Collective) -> int:
        """Start a collective whose last member arrives at time `at`, now or later. Returns its number."""
        if at < self._now:
            raise ValueError(f"a collective starts at {at} ns, but the network is at {self._now} ns already")
        plan = self._planner.plan(collective)
        demand = self._demand(plan)
        number = self._started
        self._started += 1
        begin = at + round(plan.overhead_ns(collective.size))
        started = InFlight(number, collective, plan, demand, at, begin, round(plan.duration_ns(collective.size)))
        heapq.heappush(self._waiting, (started.flows_begin, number, started))
        return number

    def next_event(self) -> int | None:
        """The time when the next flow begins or ends, if nothing else starts."""
        while self._ends and not self._is_current(*self._ends[0][1:]):
            heapq.heappop(self._ends)
        if self._ends and self._waiting:
            return min(self._ends[0][0], self._waiting[0][0])
        return self._ends[0][0] if self._ends else self._waiting[0][0] if self._waiting else None

    def advance(self, to: int) -> list[Finished]:
        """Advance the clock. Returns the collectives that ended, by time, then by number."""
        if to < self._now:
            raise ValueError(f"cannot go back to {to} ns: the network is at {self._now} ns already")
        finished: list[Finished] = []
        while (time := self.next_event()) is not None and time <= to:
            self._now = time
            finished += self._step(time)
        self._now = to
        return finished

    def simulate(self, starts: Iterable[tuple[int, Collective]]) -> list[Finished]:
        """Run collectives to their end, together with those already in flight. Results are in the order of `starts`."""
        numbers = {self.start(at, collective): place for place, (at, collective) in enumerate(starts)}
        finished: list[Finished] = []
        while (time := self.next_event()) is not None:
            finished += self.advance(time)
        return sorted((one for one in finished if one.number in numbers), key=lambda one: numbers[one.number])

    def _demand(self, plan: Plan) -> Demand:
        if id(plan) not in self._demands:
            if len(self._demands) >= _MOST_DEMANDS:
                self._demands.clear()
            self._demands[id(plan)] = (plan, demand_of(plan, self._links))
        return self._demands[id(plan)][1]

    def _is_current(self, number: int, version: int) -> bool:
        group = self._groups.get(number)
        return group is not None and group.version == version

    def _step(self, now: int) -> list[Finished]:
        """Process all events of one time, then compute new rates for the groups that changed."""
        ended: list[InFlight] = []
        touched: dict[int, FlowGroup] = {}
        while self._ends and self._ends[0][0] == now:
            _, number, version = heapq.heappop(self._ends)
            if self._is_current(number, version):
                touched[number] = self._groups[number]
        begun = []
        while self._waiting and self._waiting[0][0] == now:
            begun.append(heapq.heappop(self._waiting)[2])
        for one in begun:
            for number in np.unique(self._group_of[one.demand.links]).tolist():
                if number in self._groups:
                    touched[number] = self._groups[number]
        for group in touched.values():
            ended += group.run_until(now)
        for number in [number for number, group in touched.items() if not group.members]:
            del touched[number], self._groups[number]
        ended += [one for one in begun if not one.moves]
        for group in self._joined([one for one in begun if one.moves], now):
            touched[group.number] = group
        for number, group in touched.items():
            if number in self._groups:
                self._share(group)
        ended.sort(key=lambda one: one.number)
        return [Finished(one.number, one.collective, one.plan, one.start, now, one.alone_ns) for one in ended]

    def _new_group(self, members: list[InFlight], now: int) -> FlowGroup:
        group = FlowGroup(self._groups_made, members, now, self._links.bytes_per_ns)
        self._groups_made += 1
        self._groups[group.number] = group
        return group

    def _joined(self, begun: list[InFlight], now: int) -> list[FlowGroup]:
        """Groups of collectives whose flows begin, each merged with all groups that it connects."""
        sets: dict[int, list[FlowGroup]] = {}  # by the number of any of the groups in a set
        for one in begun:
            numbers = np.unique(self._group_of[one.demand.links]).tolist()
            found = [sets.get(number, [self._groups[number]]) for number in numbers if number in self._groups]
            new = self._new_group([one], now)
            joined = [new, *chain.from_iterable({id(part): part for part in found}.values())]
            sets |= {group.number: joined for group in joined}
            self._group_of[one.demand.links] = new.number
        merged = []
        for joined in {id(joined): joined for joined in sets.values()}.values():
            largest = max(joined, key=lambda group: (len(group.left), -group.number))
            others = [group for group in joined if group is not largest]
            largest.absorb(others)
            for group in others:
                del self._groups[group.number]
                self._group_of[group.table.links] = largest.number
            merged.append(largest)
        return merged

    def _share(self, group: FlowGroup) -> None:
        """Compute new rates. A group that has lost most of its members is split if it is no longer connected; before
        that it only costs more time to evaluate."""
        parts = [group]
        if group.ended >= len(group.members) > 1 and len(sets := group.connected()) > 1:
            del self._groups[group.number]
            parts = [self._new_group([], group.since) for _ in sets]
            for part, places in zip(parts, sets, strict=True):
                part.take(group, places)
                self._group_of[part.table.links] = part.number
        for part in parts:
            part.share(shortcut=self._shortcut)
            heapq.heappush(self._ends, (part.next_end, part.number, part.version))
