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

from maya.replay.communicator_layout import CommunicatorLayout, lay_out, lay_out_p2p
from maya.replay.rank_class import CollectiveCall, TracedCommunicator
from maya.replay.record_kinds import P2P_CALLS
from maya.replay.rendezvous import ClassTransfer, Rendezvous, RendezvousTable, Waiter
from maya.replay.replay_plan import EventWait, KernelRun, NcclGroup, ReplayPlan, StreamJoin, StreamMark
from maya.replay.run_settings import HostCosts
from maya.util.arrays import Booleans, Indices, Integers


@dataclass(frozen=True)
class Calls:
    """The collectives of a rank class, by node."""

    call: dict[int, CollectiveCall]
    sequence: dict[int, int]


@dataclass(frozen=True, eq=False)
class _Times:
    """When a collective starts and ends, for each entry of its layout."""

    started: Integers
    ended: Integers


# For the entries of a layout: a rendezvous each, one send/recv for all of them, or times where they are known at once.
_Meeting = list[Rendezvous] | ClassTransfer | _Times


@dataclass
class _Pending:
    """A stream that has arrived at collectives and waits for them to end."""

    waiter: Waiter
    meetings: list[_Meeting]  # for each node


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
        self._layouts: dict[tuple[int, bool], CommunicatorLayout] = {}  # by number in the trace; for send/recv
        self._durations: dict[CollectiveCall, Integers | None] = {}

    @property
    def groups(self) -> int:
        return len(self.first_of_group)

    # ---- the host ----

    def begin(self) -> None:
        """Start the host threads at time 0, and all streams."""
        for call in set(self.calls.call.values()):
            if call.call in P2P_CALLS:
                layout = self._layout(call)
                if layout.common_place >= 0:
                    self.table.register_side(layout.numbers, layout.common_place)
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
        for node, meeting in zip(range(item.first, item.last), pending.meetings, strict=True):
            self._complete(stream, node, _times(meeting))
        return True

    def _arrive(self, stream: int, item: NcclGroup, arrival: Integers) -> _Pending:
        waiter = Waiter(lambda: self.tasks.append((self, stream)))
        every = [self._meet(node, arrival) for node in range(item.first, item.last)]
        for meeting in every:
            _wait(waiter, meeting)
        self.open[stream] = pending = _Pending(waiter, every)
        return pending

    def _meet(self, node: int, arrival: Integers) -> _Meeting:
        """Arrive at a collective on all communicators of the class."""
        call = self.calls.call[node]
        layout = self._layout(call)
        self.arrival[self.collective_at[node]] = arrival
        if self.groups == 1:
            latest = np.full(len(layout.numbers), arrival[0], dtype=np.int64)
        else:
            latest = np.maximum.reduceat(arrival[self.group_of[layout.order]], layout.begins)
        durations = self._durations_of(call, layout)
        if durations is not None:
            return _Times(latest, latest + durations)
        sequence = self.calls.sequence[node]
        if call.call in P2P_CALLS:
            return self._meet_peers(layout, call, sequence, latest)
        return [
            self.table.arrive(communicator, number, call, sequence, count, last)
            for communicator, number, count, last in zip(
                layout.communicators, layout.numbers, layout.counts, latest.tolist(), strict=True
            )
        ]

    def _meet_peers(
        self, layout: CommunicatorLayout, call: CollectiveCall, sequence: int, arrival: Integers
    ) -> _Meeting:
        place = layout.common_place
        if place >= 0:
            transfer = self.table.arrive_class(layout.communicators, layout.numbers, call, place, sequence, arrival)
            if transfer is not None:
                return transfer
        assert layout.places is not None
        return [
            self.table.arrive_p2p(communicator, number, call, place, sequence, at)
            for communicator, number, place, at in zip(
                layout.communicators, layout.numbers, layout.places, arrival.tolist(), strict=True
            )
        ]

    def _durations_of(self, call: CollectiveCall, layout: CommunicatorLayout) -> Integers | None:
        """For each communicator the duration of a collective that nobody outside this replay has a part in. None if
        it needs a rendezvous."""
        if call not in self._durations:
            is_known = layout.is_whole and not self.table.is_shared and call.call not in P2P_CALLS
            self._durations[call] = self.table.durations(layout.communicators, call) if is_known else None
        return self._durations[call]

    def _complete(self, stream: int, node: int, times: _Times) -> None:
        at = self.collective_at[node]
        started, ended = times.started, times.ended
        if (started == started[0]).all() and (ended == ended[0]).all():  # no group splits
            self.start[node] = started[0]
            self.ended[at] = ended[0]
        else:
            of_rank = self._layout(self.calls.call[node]).of_rank
            started, ended = started[of_rank], ended[of_rank]
            self._split(started, ended)
            self.start[node] = started[self.first_of_group]
            self.ended[at] = ended[self.first_of_group]
        self.cursor[stream] = np.maximum(self.cursor[stream], self.ended[at])

    def _layout(self, call: CollectiveCall) -> CommunicatorLayout:
        number, is_p2p = call.communicator, call.call in P2P_CALLS
        found = self._layouts.get((number, is_p2p))
        if found is None:
            communicators = [known[number] for known in self.communicators]
            if is_p2p:
                found = lay_out_p2p(self.ranks, communicators, self.table.number, call.place)
            else:
                found = lay_out(communicators, self.table.number)
            self._layouts[number, is_p2p] = found
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
            for node, meeting in zip(range(item.first, item.last), pending.meetings, strict=True):
                layout = self._layout(self.calls.call[node])
                waits |= (_times(meeting).ended < 0)[layout.of_rank]
            if waits.any() and not waits.all():
                return waits
        return None

    def divide(self, chosen: Booleans) -> list[ClassReplay]:
        """Split into two replays: one of the ranks that are not chosen, one of those that are."""
        self.table.take_apart()
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
        every: list[_Meeting] = []
        for node, meeting in zip(range(item.first, item.last), pending.meetings, strict=True):
            call = self.calls.call[node]
            entries = {key: entry for entry, key in enumerate(whole._layout(call).keys)}
            mine = _chosen(meeting, [entries[key] for key in self._layout(call).keys])
            _wait(waiter, mine)
            every.append(mine)
        pending.waiter.wake = _nothing
        return _Pending(waiter, every)


def _wait(waiter: Waiter, meeting: _Meeting) -> None:
    """Let a waiter wait for every rendezvous whose end is not known yet."""
    if isinstance(meeting, _Times):
        return
    if isinstance(meeting, ClassTransfer) and meeting.parts is None:
        if meeting.ended[0] < 0:
            waiter.missing += 1
            meeting.waiting.append(waiter)
        return
    for each in _parts(meeting):
        if each.ended < 0:
            waiter.missing += 1
            each.waiting.append(waiter)


def _times(meeting: _Meeting) -> _Times:
    """Start and end of each entry; -1 where they are not known yet."""
    if isinstance(meeting, _Times):
        return meeting
    if isinstance(meeting, ClassTransfer) and meeting.parts is None:
        return _Times(meeting.started, meeting.ended)
    parts = _parts(meeting)
    started = np.array([each.started for each in parts], dtype=np.int64)
    return _Times(started, np.array([each.ended for each in parts], dtype=np.int64))


def _parts(meeting: list[Rendezvous] | ClassTransfer) -> list[Rendezvous]:
    if isinstance(meeting, ClassTransfer):
        assert meeting.parts is not None, "taken apart before its class is divided"
        return meeting.parts
    return meeting


def _chosen(meeting: _Meeting, entries: Sequence[int]) -> _Meeting:
    """These entries of a meeting."""
    if isinstance(meeting, _Times):
        return _Times(meeting.started[entries], meeting.ended[entries])
    if isinstance(meeting, ClassTransfer) and meeting.parts is None:  # over
        return _Times(meeting.started[entries], meeting.ended[entries])
    parts = _parts(meeting)
    return [parts[entry] for entry in entries]


def _nothing() -> None:
    """The wake-up of a waiter that two subsets have replaced."""
