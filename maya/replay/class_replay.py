"""The replay of one rank class, in replay groups: ranks whose times have been the same so far share a group.

In: a `ReplayPlan`, and start and end times of collectives from the `RendezvousTable`. Out: for each node an array of
times, one for each replay group. The arithmetic is nothing but `max` and `+`. A group splits when its ranks leave a
collective at different times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maya.replay.communicator_layout import CommunicatorLayout, lay_out
from maya.replay.rank_class import CollectiveCall, TracedCommunicator
from maya.replay.rendezvous import Rendezvous, RendezvousTable, Waiter
from maya.replay.replay_plan import EventWait, KernelRun, NcclGroup, ReplayPlan, StreamJoin, StreamMark
from maya.replay.run_settings import HostCosts
from maya.util.arrays import Booleans, Indices, Integers


@dataclass(frozen=True)
class Calls:
    """The collectives of a rank class, by node."""

    call: dict[int, CollectiveCall]
    sequence: dict[int, int]


@dataclass
class _Pending:
    """A stream that has arrived at collectives and waits for them to end."""

    waiter: Waiter
    rendezvous: list[list[Rendezvous]]  # for each node, one for each communicator


class ClassReplay:
    """The state of a replay for ranks of one class. A task is a stream, or ~segment of the host."""

    def __init__(
        self,
        plan: ReplayPlan,
        calls: Calls,
        costs: HostCosts,
        ranks: Sequence[int],
        communicators: Sequence[dict[int, TracedCommunicator]],
        table: RendezvousTable,
        tasks: deque[tuple[ClassReplay, int]],
    ) -> None:
        self.plan = plan
        self.calls = calls
        self.costs = costs
        self.ranks = list(ranks)
        self.communicators = list(communicators)
        self.table = table
        self.tasks = tasks
        self.group_of = np.zeros(len(ranks), dtype=np.intp)  # for each rank, its replay group
        self.first_of_group = np.zeros(1, dtype=np.intp)  # for each replay group, its first rank
        self.start = np.full((len(plan.position), 1), -1, dtype=np.int64)  # for each node
        self.collective_at = {node: at for at, node in enumerate(calls.call)}
        self.arrival = np.full((len(calls.call), 1), -1, dtype=np.int64)  # for each collective
        self.ended = np.full((len(calls.call), 1), -1, dtype=np.int64)
        self.cursor = {stream: np.zeros(1, dtype=np.int64) for stream in plan.queues}
        self.at = dict.fromkeys(plan.queues, 0)  # place in the stream's queue
        self.begun: list[Integers | None] = [None] * len(plan.segments)
        self.over = [False] * len(plan.segments)
        self.marks: list[Integers | None] = [None] * len(plan.mark_at)
        self.open: dict[int, _Pending] = {}
        self._waits_for_stream: dict[int, list[int]] = {stream: [] for stream in plan.queues}
        self._waits_for_segment: dict[int, list[int]] = {}
        self._layouts: dict[int, CommunicatorLayout] = {}

    @property
    def groups(self) -> int:
        return len(self.first_of_group)

    # ---- the host ----

    def begin(self) -> None:
        """Start the host threads at time 0, and all streams."""
        for number, segment in enumerate(self.plan.segments):
            if segment.after < 0:
                self._begin_segment(number, np.zeros(self.groups, dtype=np.int64))
        self.tasks.extend((self, stream) for stream in self.plan.queues)

    def _begin_segment(self, number: int, at: Integers) -> None:
        segments = self.plan.segments
        pending = [(number, at)]
        while pending:
            number, at = pending.pop()
            self.begun[number] = at
            for task in self._waits_for_segment.pop(number, ()):
                self.tasks.append((self, task))
            for beside in segments[number].next:
                if segments[beside].offset >= 0:
                    pending.append((beside, at + segments[beside].offset))
            if segments[number].wait is not None:
                self.tasks.append((self, ~number))

    def _end_segment(self, number: int) -> None:
        """Let the host wait at a segment's end, once the times that it waits for are known."""
        wait = self.plan.segments[number].wait
        begun = self.begun[number]
        assert wait is not None
        assert begun is not None
        reached = np.full(self.groups, -1, dtype=np.int64)
        if wait.node >= 0:
            stream = self._stream_of(wait.node)
            if not self._has_passed(stream, self.plan.reached_by[wait.node]):
                self._waits_for_stream[stream].append(~number)
                return
            reached = self.start[wait.node]
        for mark in wait.marks:
            found = self.marks[mark]
            if found is None:
                self._waits_for_stream[self.plan.mark_at[mark][0]].append(~number)
                return
            reached = np.maximum(reached, found)
        now = begun + wait.offset
        self.over[number] = True
        after = np.where(reached > now, reached + self.costs.wake, now)
        for following in self.plan.segments[number].next:
            if self.plan.segments[following].offset < 0:
                self._begin_segment(following, after)

    def _stream_of(self, node: int) -> int:
        return self.plan.stream_of(node)

    def _has_passed(self, stream: int, place: int) -> bool:
        return self.at[stream] > place

    # ---- streams ----

    def advance(self, task: int) -> None:
        """Advance a stream, or a segment of the host, as far as the times that it depends on are known."""
        if task < 0:
            if not self.over[~task]:
                self._end_segment(~task)
            return
        before = self.at[task]
        queue = self.plan.queues[task]
        while self.at[task] < len(queue) and self._step(task, queue[self.at[task]]):
            self.at[task] += 1
        if self.at[task] > before and self._waits_for_stream[task]:
            self.tasks.extend((self, other) for other in self._waits_for_stream[task])
            self._waits_for_stream[task].clear()

    def _step(self, stream: int, item: object) -> bool:
        """Replay one item of a stream's queue. Returns False if it has to wait."""
        if isinstance(item, KernelRun):
            begun = self.begun[item.segment]
            if begun is None:
                self._waits_for_segment.setdefault(item.segment, []).append(stream)
                return False
            start = np.maximum(self.cursor[stream], begun + item.lead[:, None])
            start += item.before[:, None]
            self.start[item.first : item.last] = start
            self.cursor[stream] = start[-1] + self.plan.duration[item.last - 1]
            return True
        if isinstance(item, EventWait):
            if not self._has_passed(item.stream, self.plan.reached_by[item.node]):
                self._waits_for_stream[item.stream].append(stream)
                return False
            cursor = self.cursor[stream]
            if self.costs.overlap and item.collectives and item.kernels:
                cursor = cursor + self._overlap(stream, item) * self.costs.overlap // 1000
            self.cursor[stream] = np.maximum(cursor, self.start[item.node])
            return True
        if isinstance(item, NcclGroup):
            return self._advance_collectives(stream, item)
        if isinstance(item, StreamMark):
            self.marks[item.number] = self.cursor[stream]
            return True
        assert isinstance(item, StreamJoin)
        found = self.marks[item.mark]
        if found is None:
            self._waits_for_stream[item.stream].append(stream)
            return False
        self.cursor[stream] = np.maximum(self.cursor[stream], found)
        return True

    def _overlap(self, stream: int, item: EventWait) -> Integers:
        """How long kernels of a stream overlapped with collectives of another stream."""
        kernels = self.plan.kernels_on[stream]
        nodes = self.plan.collectives_on[item.stream][item.collectives.start : item.collectives.stop]
        total = np.zeros(self.groups, dtype=np.int64)
        for node in nodes.tolist():
            started, ended = self.start[node], self.ended[self.collective_at[node]]
            first = self._first_after(kernels, item.kernels, started)
            chosen = kernels[first : item.kernels.stop]
            begin = self.start[chosen]
            end = begin + self.plan.duration[chosen][:, None]
            shared = np.minimum(end, ended) - np.maximum(begin, started)
            total += np.maximum(shared, 0).sum(axis=0)
        return total

    def _first_after(self, kernels: Integers, among: range, time: Integers) -> int:
        """The first kernel within a range that ends after a given time in any replay group."""
        low, high = among.start, among.stop
        while low < high:
            middle = (low + high) // 2
            node = kernels[middle]
            if (self.start[node] + self.plan.duration[node] > time).any():
                high = middle
            else:
                low = middle + 1
        return low

    # ---- collectives ----

    def _advance_collectives(self, stream: int, item: NcclGroup) -> bool:
        pending = self.open.get(stream)
        if pending is None:
            begun = self.begun[item.segment]
            if begun is None:
                self._waits_for_segment.setdefault(item.segment, []).append(stream)
                return False
            arrival = np.maximum(self.cursor[stream], begun + item.offset)
            if item.like >= 0:
                arrival = self.arrival[self.collective_at[item.like]]
            pending = self._arrive(stream, item, arrival)
        if pending.waiter.missing:
            return False
        del self.open[stream]
        for node, rendezvous in zip(range(item.first, item.last), pending.rendezvous, strict=True):
            self._complete(stream, node, rendezvous)
        return True

    def _arrive(self, stream: int, item: NcclGroup, arrival: Integers) -> _Pending:
        waiter = Waiter(lambda: self.tasks.append((self, stream)))
        every = []
        for node in range(item.first, item.last):
            call = self.calls.call[node]
            layout = self._layout(call.communicator)
            self.arrival[self.collective_at[node]] = arrival
            if self.groups == 1:
                arrivals = [int(arrival[0])] * len(layout.numbers)
            else:
                arrivals = np.maximum.reduceat(arrival[self.group_of[layout.order]], layout.begins).tolist()
            sequence = self.calls.sequence[node]
            rendezvous = [
                self.table.arrive(communicator, number, call, sequence, count, latest)
                for communicator, number, count, latest in zip(
                    layout.communicators, layout.numbers, layout.counts, arrivals, strict=True
                )
            ]
            every.append(rendezvous)
        for rendezvous in every:
            for each in rendezvous:
                if each.ended < 0:
                    waiter.missing += 1
                    each.waiting.append(waiter)
        self.open[stream] = pending = _Pending(waiter, every)
        return pending

    def _complete(self, stream: int, node: int, rendezvous: Sequence[Rendezvous]) -> None:
        at = self.collective_at[node]
        if len(rendezvous) > 1:
            layout = self._layout(self.calls.call[node].communicator)
            started = np.array([each.started for each in rendezvous], dtype=np.int64)[layout.of_rank]
            ended = np.array([each.ended for each in rendezvous], dtype=np.int64)[layout.of_rank]
            self._split(started, ended)
            self.start[node] = started[self.first_of_group]
            self.ended[at] = ended[self.first_of_group]
        else:
            self.start[node] = rendezvous[0].started
            self.ended[at] = rendezvous[0].ended
        self.cursor[stream] = np.maximum(self.cursor[stream], self.ended[at])

    def _layout(self, number: int) -> CommunicatorLayout:
        found = self._layouts.get(number)
        if found is None:
            communicators = [known[number] for known in self.communicators]
            found = self._layouts[number] = lay_out(communicators, self.table.number)
        return found

    # ---- replay groups ----

    def _split(self, started: Integers, ended: Integers) -> None:
        """Split the replay groups whose ranks have different times from now on."""
        first = self.first_of_group
        if (started[first][self.group_of] == started).all() and (ended[first][self.group_of] == ended).all():
            return
        keys = np.stack((self.group_of.astype(np.int64), started, ended))
        _, self.first_of_group, group_of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        parent = self.group_of[self.first_of_group]
        self.group_of = group_of.reshape(-1)
        self._choose(parent)

    def _choose(self, groups: Indices) -> None:
        """Keep the columns of these replay groups, in this order."""
        self.start = self.start[:, groups]
        self.arrival = self.arrival[:, groups]
        self.ended = self.ended[:, groups]
        self.cursor = {stream: times[groups] for stream, times in self.cursor.items()}
        self.begun = [times if times is None else times[groups] for times in self.begun]
        self.marks = [times if times is None else times[groups] for times in self.marks]

    # ---- stalls ----

    def stuck_ranks(self) -> Booleans | None:
        """For each rank, whether it waits for an incomplete collective. None if this is the same for all ranks."""
        for stream, pending in self.open.items():
            item = self.plan.queues[stream][self.at[stream]]
            assert isinstance(item, NcclGroup)
            waits = np.zeros(len(self.ranks), dtype=bool)
            for node, rendezvous in zip(range(item.first, item.last), pending.rendezvous, strict=True):
                layout = self._layout(self.calls.call[node].communicator)
                missing = np.array([each.ended < 0 for each in rendezvous])
                waits |= missing[layout.of_rank]
            if waits.any() and not waits.all():
                return waits
        return None

    def divide(self, chosen: Booleans) -> list[ClassReplay]:
        """Split into two replays: one of the ranks that are not chosen, one of those that are."""
        return [self._subset(np.flatnonzero(~chosen)), self._subset(np.flatnonzero(chosen))]

    def _subset(self, ranks: Indices) -> ClassReplay:
        subset = ClassReplay(
            self.plan,
            self.calls,
            self.costs,
            [self.ranks[at] for at in ranks],
            [self.communicators[at] for at in ranks],
            self.table,
            self.tasks,
        )
        for name in ("start", "arrival", "ended", "cursor", "begun", "marks"):
            setattr(subset, name, getattr(self, name))
        groups, subset.first_of_group, subset.group_of = np.unique(
            self.group_of[ranks], return_index=True, return_inverse=True
        )
        subset._choose(groups)
        subset.at = dict(self.at)
        subset.over = list(self.over)
        for stream, pending in self.open.items():
            subset.open[stream] = subset._take_over(self, stream, pending)
        tasks = [*self.plan.queues, *(~number for number, at in enumerate(self.begun) if at is not None)]
        subset.tasks.extend((subset, task) for task in tasks if task >= 0 or self.plan.segments[~task].wait is not None)
        return subset

    def _take_over(self, whole: ClassReplay, stream: int, pending: _Pending) -> _Pending:
        """Wait for those rendezvous of the whole class that the ranks of this subset take part in."""
        item = self.plan.queues[stream][self.at[stream]]
        assert isinstance(item, NcclGroup)
        waiter = Waiter(lambda: self.tasks.append((self, stream)))
        every = []
        for node, rendezvous in zip(range(item.first, item.last), pending.rendezvous, strict=True):
            number = self.calls.call[node].communicator
            by_identity = dict(zip(whole._layout(number).numbers, rendezvous, strict=True))
            mine = [by_identity[identity] for identity in self._layout(number).numbers]
            for each in mine:
                if each.ended < 0:
                    waiter.missing += 1
                    each.waiting.append(waiter)
            every.append(mine)
        pending.waiter.wake = _nothing
        return _Pending(waiter, every)


def _nothing() -> None:
    """The wake-up of a waiter that two subsets have replaced."""
