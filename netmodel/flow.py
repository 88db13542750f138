"""The flow level: collectives that are in flight at the same time share the links of the topology.

In: collectives and when they start, in integer nanoseconds. Out: when each of them ends.

First what its plan costs besides bytes passes; then the plan's flows begin, and each moves the collective's size at a
rate that is max-min fair among all flows in flight. It ends with the last of its flows. Rates change only when a flow
begins or ends, and only among flows that links connect with it: those are a group, and groups know nothing of each
other. A collective that has a group to itself needs no rates at all: it takes what the analytic level says.

Two ways to use it. `simulate` runs a list of starts to the end. Or step by step, next to a simulation of something
else: `start` a collective, ask for the `next_event`, `advance` to it or to any earlier time, start more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netmodel.analytic import AnalyticNetwork
from netmodel.collective import Collective
from netmodel.demand import Demand, Links, demand_of
from netmodel.fair_share import FlowTable, fair_rates, stack
from netmodel.nccl_settings import NcclSettings
from netmodel.plan import Plan
from netmodel.topology import Topology

_HALF = 0.501  # of a nanosecond, and a little for rounding


class Planner(Protocol):
    """Chooses how a collective is carried out."""

    def plan(self, collective: Collective) -> Plan:
        """The same plan object for the same choice: what belongs to a plan is worked out once."""
        ...


@dataclass(frozen=True)
class Finished:
    """A collective that ended."""

    number: int  # as `start` gave it
    collective: Collective
    plan: Plan
    start_ns: int
    end_ns: int
    alone_ns: int  # what it would have taken with the network to itself

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


class FlowNetwork:
    """A network with its clock, and what is in flight."""

    def __init__(
        self,
        topology: Topology,
        settings: NcclSettings | None = None,
        *,
        planner: Planner | None = None,
        shortcut: bool = True,
    ) -> None:
        """Plans are those of the analytic level with the same settings, unless they come from a `planner`. Without
        `shortcut` rates are worked out for collectives that have their links to themselves as well.
        """
        self._planner = planner or AnalyticNetwork(topology, settings)
        self._shortcut = shortcut
        self._links = Links.of(topology)
        self._demands: dict[
            int, tuple[Plan, Demand]
        ] = {}  # by the plan's id; the plan is kept, so the id stays its own
        self._now = 0
        self._started = 0
        self._waiting: list[tuple[int, int, _InFlight]] = []  # heap: for their flows to begin
        self._groups: list[tuple[int, int, _Group]] = []  # heap: by the time their next flow ends
        self._groups_made = 0
        # The collective in flight that uses a link; of several in one group, any.
        self._user = np.full(len(self._links.bytes_per_ns), -1, np.int64)
        self._in_flight: dict[int, _InFlight] = {}

    @property
    def now(self) -> int:
        """The time up to which everything is known."""
        return self._now

    def start(self, at: int, collective: Collective) -> int:
        """A collective whose last member arrives at time `at`, now or later. Returns the number it is known by."""
        if at < self._now:
            raise ValueError(f"a collective starts at {at} ns, but the network is at {self._now} ns already")
        plan = self._planner.plan(collective)
        demand = self._demand(plan)
        number = self._started
        self._started += 1
        begin = at + round(plan.overhead_ns(collective.size))
        started = _InFlight(number, collective, plan, demand, at, begin, round(plan.duration_ns(collective.size)))
        heapq.heappush(self._waiting, (started.flows_begin, number, started))
        return number

    def next_event(self) -> int | None:
        """When flows begin or end next, and perhaps a collective with them, if nothing else is started."""
        while self._groups and self._groups[0][2].dissolved:
            heapq.heappop(self._groups)
        times = [heap[0][0] for heap in (self._waiting, self._groups) if heap]
        return min(times, default=None)

    def advance(self, to: int) -> list[Finished]:
        """Lets time pass. Returns what ended, in order of time, then of number."""
        if to < self._now:
            raise ValueError(f"cannot go back to {to} ns: the network is at {self._now} ns already")
        finished: list[Finished] = []
        while (time := self.next_event()) is not None and time <= to:
            self._now = time
            finished += self._step(time)
        self._now = to
        return finished

    def simulate(self, starts: Iterable[tuple[int, Collective]]) -> list[Finished]:
        """Runs collectives to their end, with what was in flight before. The answers are in the order of `starts`."""
        numbers = {self.start(at, collective): place for place, (at, collective) in enumerate(starts)}
        finished: list[Finished] = []
        while (time := self.next_event()) is not None:
            finished += self.advance(time)
        return sorted((one for one in finished if one.number in numbers), key=lambda one: numbers[one.number])

    def _demand(self, plan: Plan) -> Demand:
        if id(plan) not in self._demands:
            self._demands[id(plan)] = (plan, demand_of(plan, self._links))
        return self._demands[id(plan)][1]

    def _step(self, now: int) -> list[Finished]:
        """Everything that happens at one time, then new rates for the groups that it touched."""
        touched: dict[int, _InFlight] = {}
        begun: list[_InFlight] = []
        while self._waiting and self._waiting[0][0] == now:
            one = heapq.heappop(self._waiting)[2]
            begun.append(one)
            for user in np.unique(self._user[one.demand.links]):
                if user >= 0 and user not in touched:
                    touched |= self._dissolve(self._in_flight[user].group, now)
        while self._groups and (self._groups[0][2].dissolved or self._groups[0][0] == now):
            group = heapq.heappop(self._groups)[2]
            if not group.dissolved:
                touched |= self._dissolve(group, now)
        everyone = [*touched.values(), *begun]
        staying = [one for one in everyone if one.flows]
        ended = sorted((one for one in everyone if not one.flows), key=lambda one: one.number)
        for one in ended:
            self._in_flight.pop(one.number, None)
        for one in staying:
            self._in_flight[one.number] = one
        for members in self._connected(sorted(staying, key=lambda one: one.number)):
            group = _Group(members, now, self._links.bytes_per_ns, self._shortcut)
            self._groups_made += 1
            heapq.heappush(self._groups, (group.next_end, self._groups_made, group))
        return [Finished(one.number, one.collective, one.plan, one.start, now, one.alone_ns) for one in ended]

    def _dissolve(self, group: _Group, now: int) -> dict[int, _InFlight]:
        group.run_until(now)
        group.dissolved = True
        for one in group.members:
            self._user[one.demand.links] = -1
        return {one.number: one for one in group.members}

    def _connected(self, collectives: Sequence[_InFlight]) -> list[list[_InFlight]]:
        """Collectives that share links, directly or through others. Enters them as the users of their links."""
        leader = {one.number: one.number for one in collectives}

        def find(number: int) -> int:
            while leader[number] != number:
                leader[number] = leader[leader[number]]
                number = leader[number]
            return number

        for one in collectives:
            for user in np.unique(self._user[one.demand.links]):
                if user >= 0:
                    leader[find(int(user))] = find(one.number)
            self._user[one.demand.links] = one.number
        groups: dict[int, list[_InFlight]] = {}
        for one in collectives:
            groups.setdefault(find(one.number), []).append(one)
        return list(groups.values())


class _InFlight:
    """A collective from its start to its end."""

    def __init__(
        self, number: int, collective: Collective, plan: Plan, demand: Demand, start: int, begin: int, alone_ns: int
    ) -> None:
        self.number = number
        self.collective = collective
        self.plan = plan
        self.demand = demand
        self.start = start
        self.flows_begin = begin
        self.alone_ns = alone_ns
        self.table = demand.table  # of the flows that have not ended
        self.left = np.full(len(demand.table) if collective.size else 0, float(collective.size))  # bytes of each
        self.untouched = True  # all flows have all their bytes left
        self.group: _Group

    @property
    def flows(self) -> int:
        """How many have not ended."""
        return len(self.left)


class _Group:
    """Collectives whose flows are connected by links, from one change of its flows to the next."""

    def __init__(self, members: list[_InFlight], now: int, bytes_per_ns: NDArray[np.float64], shortcut: bool) -> None:
        self.members = members
        self.dissolved = False
        self._since = now
        self._bytes_per_ns = bytes_per_ns
        self._rates: list[NDArray[np.float64]] = []  # by member: bytes per ns of each of its flows
        for one in members:
            one.group = self
        alone = members[0]
        if shortcut and len(members) == 1 and alone.untouched:
            self.next_end = now + alone.alone_ns - (alone.flows_begin - alone.start)
        else:
            self._share()

    def run_until(self, now: int) -> None:
        """Moves the bytes of the time up to `now`, the next end at the latest, and drops flows that have ended."""
        if not self._rates:  # alone until now, so nobody asked
            if now == self.next_end:
                self.members[0].left = np.zeros(0)
                return
            self._share()
            while self.next_end < now:
                self._move(self.next_end)
                self._share()
        self._move(now)

    def _share(self) -> None:
        """New rates for all flows, and when the first of them ends."""
        tables = []
        links = np.unique(np.concatenate([one.demand.links for one in self.members]))
        for one in self.members:
            places = np.searchsorted(links, one.demand.links)
            tables.append(FlowTable(one.table.offsets, places[one.table.links], one.table.amounts, one.table.limits))
        rates = fair_rates(stack(tables), self._bytes_per_ns[links])
        self._rates = []
        first = np.inf
        at = 0
        for one in self.members:
            self._rates.append(rates[at : at + one.flows] * one.demand.weight)
            at += one.flows
            first = min(first, (one.left / self._rates[-1]).min(initial=np.inf))
        self.next_end = self._since + math.floor(first + 0.5)

    def _move(self, now: int) -> None:
        """Flows that are no more than half a nanosecond from their end have ended."""
        for one, rate in zip(self.members, self._rates, strict=True):
            one.left = one.left - rate * (now - self._since)
            one.untouched = False
            stay = one.left > rate * _HALF
            if not stay.all():
                one.left = one.left[stay]
                one.table = one.table.select(stay)
        self._since = now
