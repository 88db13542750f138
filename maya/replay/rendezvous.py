"""Where ranks meet: collectives and messages, from the arrivals of their members to their times.

In: who comes when, as arrays over ranks. Out: when it started and ended for each. A collective starts when its last
member has come. A message's receiver waits for its sender; the sender waits for the receiver only if NCCL's buffer is
too small for the message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from maya.replay.collective_times import BUFFERED_BYTES
from maya.replay.rank_class import TracedCommunicator
from maya.replay.timeline import CollectiveCall
from maya.replay.trace_digest import MESSAGES
from netmodel.collectives.collective import Collective
from netmodel.flow import FlowNetwork

Wake = Callable[[], None]


class Network(Protocol):
    """How long collectives take that have the network to themselves; see network.CollectiveTimes."""

    @property
    def origin(self) -> str: ...

    def collective_ns(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> int: ...

    def message_ns(self, sender: int, receiver: int, size: int) -> int: ...

    def collective(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> Collective: ...

    def message(self, sender: int, receiver: int, size: int) -> Collective: ...


@dataclass
class Ticket:
    """Somebody who waits for meetings."""

    wake: Wake
    missing: int = 0


@dataclass(slots=True)
class Rendezvous:
    """One collective, or one end of a message."""

    needed: int  # members that are yet to come
    latest: int = 0  # arrival so far
    started: int = -1
    ended: int = -1  # -1: not known yet
    waiting: list[Ticket] = field(default_factory=list)


@dataclass(slots=True)
class _Message:
    sent: Rendezvous
    received: Rendezvous
    shared_bytes: int = 0


class RendezvousTable:
    """All collectives and messages of a job."""

    def __init__(self, network: Network, flow: FlowNetwork | None = None) -> None:
        self._network = network
        self._flow = flow
        self._collectives: dict[tuple[int, int], Rendezvous] = {}
        self._messages: dict[tuple[int, int, int, int], _Message] = {}
        self._to_start: list[tuple[int, int, Collective, Sequence[Rendezvous]]] = []  # heap
        self._in_flight: dict[int, Sequence[Rendezvous]] = {}
        self._numbered = 0
        self._communicators: dict[TracedCommunicator, int] = {}

    @property
    def is_shared(self) -> bool:
        """Collectives in flight share links."""
        return self._flow is not None

    def number(self, communicator: TracedCommunicator) -> int:
        """A number for a communicator, the same on all its ranks."""
        return self._communicators.setdefault(communicator, len(self._communicators))

    def come(
        self,
        communicator: TracedCommunicator,
        number: int,
        call: CollectiveCall,
        sequence: int,
        ranks: int,
        arrival: int,
    ) -> Rendezvous:
        """So many ranks of a communicator have come, the last of them at `arrival`."""
        if call.call in MESSAGES:
            return self._come_to_message(communicator, number, call, sequence, arrival)
        key = (number, sequence)
        meeting = self._collectives.get(key)
        if meeting is None:
            meeting = self._collectives[key] = Rendezvous(len(communicator.members))
        meeting.needed -= ranks
        if arrival > meeting.latest:
            meeting.latest = arrival
        if meeting.needed == 0:
            del self._collectives[key]
            meeting.started = meeting.latest
            if self._flow is not None and len(communicator.members) > 1:
                root = max(call.peer, 0)
                what = self._network.collective(call.call, call.count, call.dtype, communicator.members, root)
                self._start(meeting.started, what, [meeting])
            else:
                _end(meeting, meeting.started + self._duration(communicator, call))
        return meeting

    def _duration(self, communicator: TracedCommunicator, call: CollectiveCall) -> int:
        return self._network.collective_ns(call.call, call.count, call.dtype, communicator.members, max(call.peer, 0))

    def _come_to_message(
        self, communicator: TracedCommunicator, number: int, call: CollectiveCall, sequence: int, arrival: int
    ) -> Rendezvous:
        sends = call.call == "ncclSend"
        sender, receiver = (call.place, call.peer) if sends else (call.peer, call.place)
        key = (number, sender, receiver, sequence)
        message = self._messages.get(key)
        if message is None:
            message = self._messages[key] = _Message(Rendezvous(1), Rendezvous(1))
        mine, other = (message.sent, message.received) if sends else (message.received, message.sent)
        mine.needed, mine.latest = 0, arrival
        message.shared_bytes = max(message.shared_bytes, call.shared_bytes, call.size)
        ends = communicator.members[sender], communicator.members[receiver]
        buffered = call.size <= BUFFERED_BYTES
        if sends and buffered:
            mine.started = arrival
            _end(mine, arrival + self._network.message_ns(*ends, max(call.shared_bytes, call.size)))
        if other.needed == 0:
            del self._messages[key]
            started = max(message.sent.latest, message.received.latest)
            both = [message.received] if buffered else [message.sent, message.received]
            for meeting in both:
                meeting.started = started
            if self._flow is not None and not buffered and ends[0] != ends[1]:
                self._start(started, self._network.message(*ends, message.shared_bytes), both)
            else:
                duration = self._network.message_ns(*ends, message.shared_bytes)
                for meeting in both:
                    _end(meeting, started + duration)
        return mine

    # ---- the flow level ----

    def _start(self, at: int, what: Collective, meetings: Sequence[Rendezvous]) -> None:
        heapq.heappush(self._to_start, (at, self._numbered, what, meetings))
        self._numbered += 1

    def pass_time(self) -> bool:
        """Let time pass in the network until something ends. Call it when no rank can go on: what is still to be
        started depends on something in flight, so it starts later than the next end. False: nothing is in flight."""
        if self._flow is None:
            return False
        while True:
            event = self._flow.next_event()
            if self._to_start and (event is None or self._to_start[0][0] <= event):
                at, _, what, meetings = heapq.heappop(self._to_start)
                self._in_flight[self._flow.start(at, what)] = meetings
            elif event is None:
                return False
            else:
                finished = self._flow.advance(event)
                for one in finished:
                    for meeting in self._in_flight.pop(one.number):
                        _end(meeting, one.end_ns)
                if finished:
                    return True

    def unfinished(self) -> list[tuple[int, int]]:
        """Communicators' numbers and how many of their members have not come, for collectives that never began."""
        return [(key[0], meeting.needed) for key, meeting in self._collectives.items()]


def _end(meeting: Rendezvous, at: int) -> None:
    meeting.ended = at
    for ticket in meeting.waiting:
        ticket.missing -= 1
        if ticket.missing == 0:
            ticket.wake()
    meeting.waiting.clear()
