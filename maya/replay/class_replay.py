"""Ranks of one behaviour that are replayed together, in lanes: ranks whose times have been the same so far share one.

In: a `ReplayPlan`, and the times of what its ranks meet in. Out: when everything happened, an array over lanes for each
node. Nothing but `max` and `+`. Where ranks of a lane come out of a collective at different times, the lane is split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.replay.communicator_layout import Layout, lay_out
from maya.replay.rank_class import TracedCommunicator
from maya.replay.rendezvous import Rendezvous, RendezvousTable, Ticket
from maya.replay.replay_plan import EventWait, KernelRun, Meet, ReplayPlan, StreamJoin, StreamMark
from maya.replay.run_settings import HostCosts
from maya.replay.timeline import CollectiveCall

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calls:
    """The collectives of a behaviour, by node."""

    call: dict[int, CollectiveCall]
    sequence: dict[int, int]


@dataclass
class _Open:
    """A stream that has come to collectives and waits for them."""

    ticket: Ticket
    meetings: list[list[Rendezvous]]  # for each node: one for each communicator


class ClassReplay:
    """The state of a replay for some ranks. A task is a stream, or ~segment of the host."""

    def __init__(
        self,
        course: ReplayPlan,
        calls: Calls,
        costs: HostCosts,
        ranks: Sequence[int],
        communicators: Sequence[dict[int, TracedCommunicator]],
        meetings: RendezvousTable,
        tasks: deque[tuple[ClassReplay, int]],
    ) -> None:
        self.course = course
        self.calls = calls
        self.costs = costs
        self.ranks = list(ranks)
        self.communicators = list(communicators)
        self.meetings = meetings
        self.tasks = tasks
        self.lane = np.zeros(len(ranks), dtype=np.intp)  # of each rank
        self.heads = np.zeros(1, dtype=np.intp)  # of each lane: the first of its ranks
        self.start = np.full((len(course.position), 1), -1, dtype=np.int64)  # of each node
        self.collective_at = {node: at for at, node in enumerate(calls.call)}
        self.arrival = np.full((len(calls.call), 1), -1, dtype=np.int64)  # of each collective
        self.ended = np.full((len(calls.call), 1), -1, dtype=np.int64)
        self.cursor = {stream: np.zeros(1, dtype=np.int64) for stream in course.queues}
        self.at = dict.fromkeys(course.queues, 0)  # place in the stream's queue
        self.begun: list[Integers | None] = [None] * len(course.segments)
        self.over = [False] * len(course.segments)
        self.marks: list[Integers | None] = [None] * len(course.mark_at)
        self.open: dict[int, _Open] = {}
        self._waits_for_stream: dict[int, list[int]] = {stream: [] for stream in course.queues}
        self._waits_for_segment: dict[int, list[int]] = {}
        self._layouts: dict[int, Layout] = {}

    @property
    def lanes(self) -> int:
        return len(self.heads)

    # ---- the host ----

    def begin(self) -> None:
        """At time 0."""
        for number, segment in enumerate(self.course.segments):
            if segment.after < 0:
                self._begin_segment(number, np.zeros(self.lanes, dtype=np.int64))
        self.tasks.extend((self, stream) for stream in self.course.queues)

    def _begin_segment(self, number: int, at: Integers) -> None:
        segments = self.course.segments
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
        """The host waits at a segment's end for what it is to wait for, if that is known."""
        wait = self.course.segments[number].wait
        begun = self.begun[number]
        assert wait is not None
        assert begun is not None
        reached = np.full(self.lanes, -1, dtype=np.int64)
        if wait.node >= 0:
            stream = self._stream_of(wait.node)
            if not self._has_passed(stream, self.course.reached_by[wait.node]):
                self._waits_for_stream[stream].append(~number)
                return
            reached = self.start[wait.node]
        for mark in wait.marks:
            found = self.marks[mark]
            if found is None:
                self._waits_for_stream[self.course.mark_at[mark][0]].append(~number)
                return
            reached = np.maximum(reached, found)
        now = begun + wait.offset
        self.over[number] = True
        after = np.where(reached > now, reached + self.costs.wake, now)
        for following in self.course.segments[number].next:
            if self.course.segments[following].offset < 0:
                self._begin_segment(following, after)

    def _stream_of(self, node: int) -> int:
        return self.course.stream_of(node)

    def _has_passed(self, stream: int, place: int) -> bool:
        return self.at[stream] > place

    # ---- streams ----

    def advance(self, task: int) -> None:
        """Go on with a stream, or a segment of the host, as far as its times are known."""
        if task < 0:
            if not self.over[~task]:
                self._end_segment(~task)
            return
        before = self.at[task]
        queue = self.course.queues[task]
        while self.at[task] < len(queue) and self._step(task, queue[self.at[task]]):
            self.at[task] += 1
        if self.at[task] > before and self._waits_for_stream[task]:
            self.tasks.extend((self, waiting) for waiting in self._waits_for_stream[task])
            self._waits_for_stream[task].clear()

    def _step(self, stream: int, item: object) -> bool:
        """Do one item of a stream's queue; False if it has to wait."""
        if isinstance(item, KernelRun):
            begun = self.begun[item.segment]
            if begun is None:
                self._waits_for_segment.setdefault(item.segment, []).append(stream)
                return False
            start = np.maximum(self.cursor[stream], begun + item.lead[:, None])
            start += item.before[:, None]
            self.start[item.first : item.last] = start
            self.cursor[stream] = start[-1] + self.course.duration[item.last - 1]
            return True
        if isinstance(item, EventWait):
            if not self._has_passed(item.stream, self.course.reached_by[item.node]):
                self._waits_for_stream[item.stream].append(stream)
                return False
            cursor = self.cursor[stream]
            if self.costs.overlap and item.collectives and item.works:
                cursor = cursor + self._overlap(stream, item) * self.costs.overlap // 1000
            self.cursor[stream] = np.maximum(cursor, self.start[item.node])
            return True
        if isinstance(item, Meet):
            return self._meet(stream, item)
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
        """How long works of a stream ran beside collectives of another."""
        works = self.course.works_on[stream]
        nodes = self.course.collectives_on[item.stream][item.collectives.start : item.collectives.stop]
        total = np.zeros(self.lanes, dtype=np.int64)
        for node in nodes.tolist():
            started, ended = self.start[node], self.ended[self.collective_at[node]]
            first = self._first_after(works, item.works, started)
            chosen = works[first : item.works.stop]
            begin = self.start[chosen]
            end = begin + self.course.duration[chosen][:, None]
            shared = np.minimum(end, ended) - np.maximum(begin, started)
            total += np.maximum(shared, 0).sum(axis=0)
        return total

    def _first_after(self, works: Integers, among: range, time: Integers) -> int:
        """The first of some works of a stream that ends after a time on any lane."""
        low, high = among.start, among.stop
        while low < high:
            middle = (low + high) // 2
            node = works[middle]
            if (self.start[node] + self.course.duration[node] > time).any():
                high = middle
            else:
                low = middle + 1
        return low

    # ---- collectives ----

    def _meet(self, stream: int, item: Meet) -> bool:
        waiting = self.open.get(stream)
        if waiting is None:
            begun = self.begun[item.segment]
            if begun is None:
                self._waits_for_segment.setdefault(item.segment, []).append(stream)
                return False
            arrival = np.maximum(self.cursor[stream], begun + item.offset)
            if item.like >= 0:
                arrival = self.arrival[self.collective_at[item.like]]
            waiting = self._come(stream, item, arrival)
        if waiting.ticket.missing:
            return False
        del self.open[stream]
        for node, meetings in zip(range(item.first, item.last), waiting.meetings, strict=True):
            self._leave(stream, node, meetings)
        return True

    def _come(self, stream: int, item: Meet, arrival: Integers) -> _Open:
        ticket = Ticket(lambda: self.tasks.append((self, stream)))
        every = []
        for node in range(item.first, item.last):
            call = self.calls.call[node]
            layout = self._layout(call.communicator)
            self.arrival[self.collective_at[node]] = arrival
            if self.lanes == 1:
                arrivals = [int(arrival[0])] * len(layout.numbers)
            else:
                arrivals = np.maximum.reduceat(arrival[self.lane[layout.order]], layout.begins).tolist()
            sequence = self.calls.sequence[node]
            meetings = [
                self.meetings.come(communicator, number, call, sequence, count, latest)
                for communicator, number, count, latest in zip(
                    layout.communicators, layout.numbers, layout.counts, arrivals, strict=True
                )
            ]
            every.append(meetings)
        for meetings in every:
            for meeting in meetings:
                if meeting.ended < 0:
                    ticket.missing += 1
                    meeting.waiting.append(ticket)
        self.open[stream] = waiting = _Open(ticket, every)
        return waiting

    def _leave(self, stream: int, node: int, meetings: Sequence[Rendezvous]) -> None:
        at = self.collective_at[node]
        if len(meetings) > 1:
            layout = self._layout(self.calls.call[node].communicator)
            started = np.array([meeting.started for meeting in meetings], dtype=np.int64)[layout.of_rank]
            ended = np.array([meeting.ended for meeting in meetings], dtype=np.int64)[layout.of_rank]
            self._split(started, ended)
            self.start[node] = started[self.heads]
            self.ended[at] = ended[self.heads]
        else:
            self.start[node] = meetings[0].started
            self.ended[at] = meetings[0].ended
        self.cursor[stream] = np.maximum(self.cursor[stream], self.ended[at])

    def _layout(self, number: int) -> Layout:
        found = self._layouts.get(number)
        if found is None:
            communicators = [known[number] for known in self.communicators]
            found = self._layouts[number] = lay_out(communicators, self.meetings.number)
        return found

    # ---- lanes ----

    def _split(self, started: Integers, ended: Integers) -> None:
        """Split lanes whose ranks have different times from now on."""
        heads = self.heads
        if (started[heads][self.lane] == started).all() and (ended[heads][self.lane] == ended).all():
            return
        keys = np.stack((self.lane.astype(np.int64), started, ended))
        _, self.heads, lane = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        parent = self.lane[self.heads]
        self.lane = lane.reshape(-1)
        self._choose(parent)

    def _choose(self, lanes: npt.NDArray[np.intp]) -> None:
        """Have these of the present lanes, in this order."""
        self.start = self.start[:, lanes]
        self.arrival = self.arrival[:, lanes]
        self.ended = self.ended[:, lanes]
        self.cursor = {stream: times[lanes] for stream, times in self.cursor.items()}
        self.begun = [times if times is None else times[lanes] for times in self.begun]
        self.marks = [times if times is None else times[lanes] for times in self.marks]

    # ---- standstill ----

    def stuck_ranks(self) -> npt.NDArray[np.bool_] | None:
        """Of each rank, whether some collective it waits for has not come about; None if there is no difference."""
        for stream, waiting in self.open.items():
            item = self.course.queues[stream][self.at[stream]]
            assert isinstance(item, Meet)
            waits = np.zeros(len(self.ranks), dtype=bool)
            for node, meetings in zip(range(item.first, item.last), waiting.meetings, strict=True):
                layout = self._layout(self.calls.call[node].communicator)
                missing = np.array([meeting.ended < 0 for meeting in meetings])
                waits |= missing[layout.of_rank]
            if waits.any() and not waits.all():
                return waits
        return None

    def divide(self, chosen: npt.NDArray[np.bool_]) -> list[ClassReplay]:
        """Two cohorts: the ranks that are not chosen, and those that are."""
        return [self._part(np.flatnonzero(~chosen)), self._part(np.flatnonzero(chosen))]

    def _part(self, ranks: npt.NDArray[np.intp]) -> ClassReplay:
        part = ClassReplay(
            self.course,
            self.calls,
            self.costs,
            [self.ranks[at] for at in ranks],
            [self.communicators[at] for at in ranks],
            self.meetings,
            self.tasks,
        )
        for name in ("start", "arrival", "ended", "cursor", "begun", "marks"):
            setattr(part, name, getattr(self, name))
        lanes, part.heads, part.lane = np.unique(self.lane[ranks], return_index=True, return_inverse=True)
        part._choose(lanes)
        part.at = dict(self.at)
        part.over = list(self.over)
        for stream, waiting in self.open.items():
            part.open[stream] = part._take_over(self, stream, waiting)
        tasks = [*self.course.queues, *(~number for number, at in enumerate(self.begun) if at is not None)]
        part.tasks.extend((part, task) for task in tasks if task >= 0 or self.course.segments[~task].wait is not None)
        return part

    def _take_over(self, whole: ClassReplay, stream: int, waiting: _Open) -> _Open:
        """Those of the meetings that the ranks of this part are in."""
        item = self.course.queues[stream][self.at[stream]]
        assert isinstance(item, Meet)
        ticket = Ticket(lambda: self.tasks.append((self, stream)))
        every = []
        for node, meetings in zip(range(item.first, item.last), waiting.meetings, strict=True):
            number = self.calls.call[node].communicator
            by_identity = dict(zip(whole._layout(number).numbers, meetings, strict=True))
            mine = [by_identity[identity] for identity in self._layout(number).numbers]
            for meeting in mine:
                if meeting.ended < 0:
                    ticket.missing += 1
                    meeting.waiting.append(ticket)
            every.append(mine)
        waiting.ticket.wake = _nothing
        return _Open(ticket, every)


def _nothing() -> None:
    """Of a ticket that others have taken over."""
