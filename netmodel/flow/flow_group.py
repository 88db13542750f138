"""Collectives in flight that shared links connect: the remaining bytes and rate of each, and when the next one ends.

In: collectives that begin, and the passing of time. Out: collectives that have ended. A collective that is alone in its
group needs no rates: its plan gives its duration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.collective import Collective
from netmodel.collectives.plan import Plan
from netmodel.flow.demand import Demand
from netmodel.flow.fair_share import FlowTable, fair_rates, stack

_HALF = 0.501  # ns: half a nanosecond and a margin for rounding


@dataclass(frozen=True, eq=False)
class InFlight:
    """A collective from its start to its end."""

    number: int
    collective: Collective
    plan: Plan
    demand: Demand
    start: int
    flows_begin: int
    alone_ns: int

    @property
    def moves(self) -> bool:
        """Whether it has bytes to move over links."""
        return self.collective.size > 0 and len(self.demand.table) > 0


class FlowGroup:
    """Flows of one or several collectives, as arrays. Callers call `share` after their last change."""

    def __init__(self, number: int, members: Sequence[InFlight], now: int, bytes_per_ns: NDArray[np.float64]) -> None:
        """`members` is empty, or one collective whose flows begin now."""
        self.number = number
        self.members = list(members)
        self.since = now  # the time at which `left` was current
        self.next_end = now
        self.version = 0  # counts changes of rates
        self.ended = 0  # members that have ended since the group was last known to be connected
        self._bytes_per_ns = bytes_per_ns
        self._untouched = True  # no flow has moved any bytes yet
        self._rates: NDArray[np.float64] | None = None  # bytes per ns; None until needed
        self._member = np.zeros(0, np.int64)  # per flow: its index in `members`
        self.left = np.zeros(0)  # remaining bytes per flow
        self._weight = np.zeros(0)
        self.table = stack([])
        for one in members:
            self.table = one.demand.table
            self._member = np.zeros(len(self.table), np.int64)
            self.left = np.full(len(self.table), float(one.collective.size))
            self._weight = np.full(len(self.table), one.demand.weight)

    def absorb(self, others: Sequence[FlowGroup]) -> None:
        """Take over the members of other groups, whose `since` must be the same."""
        if not others:
            return
        places = [self._member]
        for other in others:
            assert other.since == self.since
            places.append(other._member + len(self.members))
            self.members += other.members
            self._untouched &= other._untouched
            self.ended += other.ended
        self._member = np.concatenate(places)
        self.left = np.concatenate([self.left, *(other.left for other in others)])
        self._weight = np.concatenate([self._weight, *(other._weight for other in others)])
        self.table = stack([self.table, *(other.table for other in others)])

    def take(self, other: FlowGroup, places: Sequence[int]) -> None:
        """Become the part of another group that consists of these members."""
        new_place = np.full(len(other.members), -1, np.int64)
        new_place[list(places)] = np.arange(len(places))
        mine = new_place[other._member] >= 0
        self.members = [other.members[place] for place in places]
        self._member = new_place[other._member][mine]
        self.left, self._weight, self.table = other.left[mine], other._weight[mine], other.table.select(mine)
        self.since, self._untouched = other.since, False

    def connected(self) -> list[list[int]]:
        """Sets of members (by index) that shared links connect."""
        leader = list(range(len(self.members)))

        def find(place: int) -> int:
            while leader[place] != place:
                leader[place] = leader[leader[place]]
                place = leader[place]
            return place

        user: dict[int, int] = {}
        for place, one in enumerate(self.members):
            for link in one.demand.links.tolist():
                leader[find(user.setdefault(link, place))] = find(place)
        sets: dict[int, list[int]] = {}
        for place in range(len(self.members)):
            sets.setdefault(find(place), []).append(place)
        self.ended = 0
        return list(sets.values())

    def share(self, *, shortcut: bool) -> None:
        """Compute new rates after a change of flows, and when the first flow ends."""
        self.version += 1
        if shortcut and len(self.members) == 1 and self._untouched:
            one = self.members[0]
            self._rates = None
            self.next_end = one.start + one.alone_ns
        else:
            self._solve()

    def run_until(self, now: int) -> list[InFlight]:
        """Move bytes until `now`, which is no later than the next end. Returns the members that have ended."""
        if self._rates is None:
            if now == self.next_end:
                gone, self.members = self.members, []
                return gone
            self._solve()
            while self.next_end < now:
                gone = self._move(self.next_end)
                if gone:  # its last flow ended a rounding earlier than its plan says
                    return gone
                self._solve()
        return self._move(now)

    def _solve(self) -> None:
        table, capacity = self.table, self._bytes_per_ns
        if 4 * len(table.links) < len(capacity):  # finding the used links is faster than counting all
            used, places = np.unique(table.links, return_inverse=True)
            table, capacity = FlowTable(table.offsets, places, table.amounts, table.limits), capacity[used]
        self._rates = fair_rates(table, capacity) * self._weight
        self.next_end = self.since + math.floor(float((self.left / self._rates).min()) + 0.5)

    def _move(self, now: int) -> list[InFlight]:
        """Move bytes; a flow within half a nanosecond of its end has ended."""
        assert self._rates is not None
        if now > self.since:
            self._untouched = False
        self.left = self.left - self._rates * (now - self.since)
        self.since = now
        stay = self.left > self._rates * _HALF
        if stay.all():
            return []
        self.left, self._weight, self._member = self.left[stay], self._weight[stay], self._member[stay]
        self.table = self.table.select(stay)
        self._rates = self._rates[stay]
        flows = np.bincount(self._member, minlength=len(self.members))
        gone = [one for one, count in zip(self.members, flows.tolist(), strict=True) if not count]
        if gone:
            self.members = [one for one, count in zip(self.members, flows.tolist(), strict=True) if count]
            self._member = (np.cumsum(flows > 0) - 1)[self._member]
            self.ended += len(gone)
        return gone
