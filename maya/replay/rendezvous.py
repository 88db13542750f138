"""Rendezvous of ranks in collectives and in send/recv: arrival times -> start and end times.

A collective starts when its last member arrives. A recv waits for its send; a send waits for its recv only if the data
do not fit into NCCL's buffer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from maya.replay.collective_times import BUFFERED_BYTES
from maya.replay.rank_class import CollectiveCall, TracedCommunicator
from maya.util.arrays import Integers
from netmodel.collectives.collective import Collective
from netmodel.flow import FlowNetwork

Wake = Callable[[], None]


class Network(Protocol):
    """How long a collective takes while nothing else uses the network; see collective_times.CollectiveTimes."""

    @property
    def origin(self) -> str: ...

    def collective_ns(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> int: ...

    def p2p_ns(self, sender: int, receiver: int, size: int) -> int: ...

    def p2p_times(self, senders: Sequence[int], receivers: Sequence[int], size: int) -> list[int]: ...

    def collective(self, call: str, count: int, dtype: str, members: tuple[int, ...], root: int = 0) -> Collective: ...

    def p2p(self, sender: int, receiver: int, size: int) -> Collective: ...


@dataclass
class Waiter:
    """A stream that waits for rendezvous."""

    wake: Wake
    missing: int = 0


@dataclass(slots=True)
class Rendezvous:
    """One collective, one send or one recv."""

    needed: int  # members that have not arrived
    latest: int = 0  # latest arrival so far
    started: int = -1
    ended: int = -1  # -1: not known yet
    waiting: list[Waiter] = field(default_factory=list)


@dataclass(slots=True)
class _SendRecv:
    sent: Rendezvous
    received: Rendezvous
    shared_bytes: int = 0


@dataclass(eq=False)
class ClassTransfer:
    """A send, or a recv, on all communicators of a rank class, as arrays; `parts` once it is taken apart."""

    latest: Integers
    started: Integers
    ended: Integers  # -1: not known yet
    waiting: list[Waiter] = field(default_factory=list)
    parts: list[Rendezvous] | None = None


@dataclass(slots=True)
class _ClassSendRecv:
    """The side that has arrived first."""

    communicators: Sequence[TracedCommunicator]
    numbers: Sequence[int]
    mine: ClassTransfer
    sends: bool
    shared_bytes: int


class RendezvousTable:
    """All collectives, sends and recvs of a job."""

    def __init__(self, network: Network, flow: FlowNetwork | None = None) -> None:
        self._network = network
        self._flow = flow
        self._collectives: dict[tuple[int, int], Rendezvous] = {}
        self._p2p: dict[tuple[int, int, int, int], _SendRecv] = {}
        self._class_p2p: dict[tuple[int, int, int, int], _ClassSendRecv] = {}
        self._sides: dict[tuple[int, int], tuple[int, ...]] = {}
        self._by_class = flow is None
        self._p2p_durations: dict[tuple[int, int, int, int, int], Integers] = {}
        self._to_start: list[tuple[int, int, Collective, Sequence[Rendezvous]]] = []  # heap
        self._in_flight: dict[int, Sequence[Rendezvous]] = {}
        self._numbered = 0
        self._communicators: dict[TracedCommunicator, int] = {}

    @property
    def is_shared(self) -> bool:
        """Whether collectives in flight share links."""
        return self._flow is not None

    def number(self, communicator: TracedCommunicator) -> int:
        """A number for a communicator, the same on all its ranks."""
        return self._communicators.setdefault(communicator, len(self._communicators))

    def arrive(
        self,
        communicator: TracedCommunicator,
        number: int,
        call: CollectiveCall,
        sequence: int,
        ranks: int,
        arrival: int,
    ) -> Rendezvous:
        """Note that `ranks` more members of a communicator have arrived, the last of them at `arrival`."""
        key = (number, sequence)
        rendezvous = self._collectives.get(key)
        if rendezvous is None:
            rendezvous = self._collectives[key] = Rendezvous(len(communicator.members))
        rendezvous.needed -= ranks
        if arrival > rendezvous.latest:
            rendezvous.latest = arrival
        if rendezvous.needed == 0:
            del self._collectives[key]
            rendezvous.started = rendezvous.latest
            if self._flow is not None and len(communicator.members) > 1:
                root = max(call.peer, 0)
                what = self._network.collective(call.call, call.count, call.dtype, communicator.members, root)
                self._start(rendezvous.started, what, [rendezvous])
            else:
                _end(rendezvous, rendezvous.started + self._duration(communicator, call))
        return rendezvous

    def durations(self, communicators: Sequence[TracedCommunicator], call: CollectiveCall) -> Integers:
        """The duration of a collective on each communicator, once all members have arrived. Only where links are not
        shared, and not for send/recv."""
        return np.array([self._duration(communicator, call) for communicator in communicators], dtype=np.int64)

    def _duration(self, communicator: TracedCommunicator, call: CollectiveCall) -> int:
        return self._network.collective_ns(call.call, call.count, call.dtype, communicator.members, max(call.peer, 0))

    def arrive_p2p(
        self,
        communicator: TracedCommunicator,
        number: int,
        call: CollectiveCall,
        place: int,
        sequence: int,
        arrival: int,
    ) -> Rendezvous:
        """Note that the member in a place of a communicator has arrived at a send or recv."""
        sends = call.call == "ncclSend"
        sender, receiver = (place, call.peer) if sends else (call.peer, place)
        key = (number, sender, receiver, sequence)
        transfer = self._p2p.get(key)
        if transfer is None:
            transfer = self._p2p[key] = _SendRecv(Rendezvous(1), Rendezvous(1))
        mine, other = (transfer.sent, transfer.received) if sends else (transfer.received, transfer.sent)
        mine.needed, mine.latest = 0, arrival
        ends = communicator.members[sender], communicator.members[receiver]
        size = _bytes_on_the_way(call, is_own=sender == receiver)
        transfer.shared_bytes = max(transfer.shared_bytes, size)
        buffered = call.size <= BUFFERED_BYTES
        if sends and buffered:
            mine.started = arrival
            _end(mine, arrival + self._network.p2p_ns(*ends, size))
        if other.needed == 0:
            del self._p2p[key]
            started = max(transfer.sent.latest, transfer.received.latest)
            both = [transfer.received] if buffered else [transfer.sent, transfer.received]
            for each in both:
                each.started = started
            if self._flow is not None and not buffered and ends[0] != ends[1]:
                self._start(started, self._network.p2p(*ends, transfer.shared_bytes), both)
            else:
                duration = self._network.p2p_ns(*ends, transfer.shared_bytes)
                for each in both:
                    _end(each, started + duration)
        return mine

    # ---- send/recv of whole classes ----

    def register_side(self, numbers: Sequence[int], place: int) -> None:
        """Note that ranks of one class have this place in these communicators, before the replay begins."""
        side = tuple(numbers)
        self._sides.update({(number, place): side for number in side})

    def arrive_class(
        self,
        communicators: Sequence[TracedCommunicator],
        numbers: Sequence[int],
        call: CollectiveCall,
        place: int,
        sequence: int,
        arrival: Integers,
    ) -> ClassTransfer | None:
        """Note that a class has arrived at a send or recv, in the same place of all its communicators. None if its
        peers are not exactly the ranks of one other class: then each communicator needs a rendezvous of its own."""
        first = numbers[0]
        side = self._sides.get((first, place))
        if not self._by_class or len(numbers) == 1 or side is None or side != self._sides.get((first, call.peer)):
            return None
        sends = call.call == "ncclSend"
        sender, receiver = (place, call.peer) if sends else (call.peer, place)
        unknown = np.full(len(numbers), -1, dtype=np.int64)
        mine = ClassTransfer(arrival, unknown, unknown)
        ends = first, sender, receiver
        buffered = call.size <= BUFFERED_BYTES
        size = _bytes_on_the_way(call, is_own=sender == receiver)
        if sends and buffered:
            mine.started = arrival
            mine.ended = arrival + self._p2p_times(communicators, *ends, size)
        key = (*ends, sequence)
        other = self._class_p2p.pop(key, None)
        if other is None:
            self._class_p2p[key] = _ClassSendRecv(communicators, numbers, mine, sends, size)
            return mine
        assert other.sends != sends
        size = max(other.shared_bytes, size)
        started = np.maximum(arrival, other.mine.latest)
        ended = started + self._p2p_times(communicators, *ends, size)
        for each, is_sender in ((mine, sends), (other.mine, other.sends)):
            if not (is_sender and buffered):
                each.started, each.ended = started, ended
                for waiter in each.waiting:
                    _wake(waiter)
        return mine

    def _p2p_times(
        self, communicators: Sequence[TracedCommunicator], first: int, sender: int, receiver: int, size: int
    ) -> Integers:
        key = (first, sender, receiver, size, len(communicators))
        if key not in self._p2p_durations:
            members = [communicator.members for communicator in communicators]
            times = self._network.p2p_times(
                [each[sender] for each in members], [each[receiver] for each in members], size
            )
            self._p2p_durations[key] = np.array(times, dtype=np.int64)
        return self._p2p_durations[key]

    def take_apart(self) -> None:
        """Give every communicator a rendezvous of its own from now on, because a class is divided."""
        self._by_class = False
        for (_, sender, receiver, sequence), pending in self._class_p2p.items():
            mine = pending.mine
            times = zip(mine.latest.tolist(), mine.started.tolist(), mine.ended.tolist(), strict=True)
            mine.parts = [Rendezvous(0, *each) for each in times]
            for number, part in zip(pending.numbers, mine.parts, strict=True):
                other = Rendezvous(1)
                sent, received = (part, other) if pending.sends else (other, part)
                self._p2p[number, sender, receiver, sequence] = _SendRecv(sent, received, pending.shared_bytes)
                part.waiting = list(mine.waiting)
            for waiter in mine.waiting:
                waiter.missing += len(mine.parts) - 1
        self._class_p2p.clear()

    # ---- the flow level ----

    def _start(self, at: int, what: Collective, rendezvous: Sequence[Rendezvous]) -> None:
        heapq.heappush(self._to_start, (at, self._numbered, what, rendezvous))
        self._numbered += 1

    def pass_time(self) -> bool:
        """Advance the flow network until something ends. Call it when no rank can continue: then every transfer that
        is not started yet depends on one in flight, so it starts after the next end. Returns False if nothing is in
        flight."""
        if self._flow is None:
            return False
        while True:
            event = self._flow.next_event()
            if self._to_start and (event is None or self._to_start[0][0] <= event):
                at, _, what, rendezvous = heapq.heappop(self._to_start)
                self._in_flight[self._flow.start(at, what)] = rendezvous
            elif event is None:
                return False
            else:
                finished = self._flow.advance(event)
                for one in finished:
                    for each in self._in_flight.pop(one.number):
                        _end(each, one.end_ns)
                if finished:
                    return True


def _bytes_on_the_way(call: CollectiveCall, *, is_own: bool) -> int:
    """The bytes that decide how long a send or recv takes: those of its group that share its way. A member's send to
    itself shares none."""
    return call.size if is_own else max(call.size, call.shared_bytes)


def _end(rendezvous: Rendezvous, at: int) -> None:
    rendezvous.ended = at
    for waiter in rendezvous.waiting:
        _wake(waiter)
    rendezvous.waiting.clear()


def _wake(waiter: Waiter) -> None:
    waiter.missing -= 1
    if waiter.missing == 0:
        waiter.wake()
