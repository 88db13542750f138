"""The coordinator's state machine: messages of ranks in, answers out, no I/O.

In: messages of ranks with their payloads, and the ends of ranks. Out: messages to ranks. No message of a rank raises an
exception; an invalid one is answered with an error. The state of a completed call is dropped.

Questions about durations are collected and answered together by `answer_asks`: many cost little more than one.

The posts of a rank that has ended remain, and answers to it are dropped. Ranks that wait for a post it never made keep
waiting, unless their own programs have ended (communicators.py). `waits` lists incomplete calls with the ranks that
wait and those that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.absent_ranks import AbsentRanks, CommunicatorOrigin
from coordinator.answers import INVALID_ARGUMENT, INVALID_USAGE, Outgoing
from coordinator.arithmetic import Buffer
from coordinator.call_sites import CallSites
from coordinator.collectives import PendingCollective
from coordinator.communicators import Communicator, PendingWait
from coordinator.membership import Dividing, Joining, MembershipOutcome
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from rank_runtime.messages import (
    Alive,
    Ask,
    CallSite,
    Describe,
    Described,
    Drain,
    Ending,
    Failed,
    Join,
    Joined,
    Leave,
    Message,
    Post,
    ProcessGroup,
    RequestFailed,
    Shrink,
    Split,
    Times,
)


class State:
    """Communicators and requests for new ones."""

    def __init__(self, times: TimeModel = NO_TIME_MODEL, absent: AbsentRanks | None = None) -> None:
        self._times = times
        self.absent = absent  # None: every rank is present
        # In a job with absent ranks: the origin of each communicator, by its members and instance.
        self.origins: dict[tuple[tuple[int, ...], int], CommunicatorOrigin | None] = {}
        self._asks: list[tuple[int, Ask]] = []  # rank and question, unanswered
        self.sites = CallSites()
        self._communicators: dict[int, Communicator] = {}  # by each of its numbers
        self._communicators_of: dict[int, set[int]] = {}  # rank -> numbers
        self._joining: dict[bytes, Joining] = {}
        self._dividing: dict[tuple[int, int], Dividing] = {}  # parent, sequence
        self._instances: dict[tuple[int, ...], int] = {}  # members -> communicators made of them
        self._last_number = 0
        self._made = 0
        self._steps: dict[int, int] = {}
        self._host_ns: dict[int, int] = {}  # each rank's clock in its last message
        self._draining: set[int] = set()
        self._ended: set[int] = set()
        self._posts = 0
        self._requests = 0  # all other messages of ranks
        self._collectives = 0  # completed on communicators that no longer exist

    # ---- events ----

    def start(self, rank: int) -> None:
        """A process of the rank has started, the first or a restarted one."""
        self._ended.discard(rank)
        self.sites.start(rank)
        self._steps.setdefault(rank, 0)

    def handle(self, rank: int, message: Message, payload: Buffer | None) -> list[Outgoing]:
        """Take a message of a started rank. The server handles Hello and Bye; messages to ranks are ignored."""
        if type(message) is Post:
            self._posts += 1
            communicator = self._communicators.get(message.communicator)
            member = None if communicator is None else communicator.member(rank, message.communicator)
            if communicator is None or member is None:
                return [
                    (rank, Failed(message.token, INVALID_ARGUMENT, self._unknown(rank, message.communicator)), None)
                ]
            if message.site:
                message.site = self.sites.number(rank, message.site)
            return communicator.post(member, message, payload)
        if type(message) is CallSite:
            self.sites.add(rank, message)
            return []
        if type(message) is Alive:
            self._steps[rank] = message.steps
            self._host_ns[rank] = message.host_ns
            return []
        self._requests += 1
        if type(message) is Ask:
            self._asks.append((rank, message))
            return []
        if type(message) is Join:
            return self._join(rank, message)
        if type(message) is Split or type(message) is Shrink:
            return self._divide(rank, message)
        if type(message) is Leave:
            return self._leave(rank, message)
        if type(message) is Describe:
            return self._log(rank, message)
        if type(message) is Drain:
            return self._drain(rank, message)
        if type(message) is ProcessGroup and self.absent is not None:
            self.absent.announce(rank, message.name, message.members, message.description)
        return []

    def answer_asks(self) -> list[Outgoing]:
        """Answer the questions since the last call."""
        if not self._asks:
            return []
        asks, self._asks = self._asks, []
        answers: dict[int, tuple[list[int], list[int]]] = {}
        for (rank, ask), ns in zip(asks, self._times.answers(asks), strict=True):
            numbers, times = answers.setdefault(rank, ([], []))
            numbers.append(ask.number)
            times.append(ns)
        return [(rank, Times(numbers, times), None) for rank, (numbers, times) in answers.items()]

    def say_bye(self, rank: int, host_ns: int) -> None:
        """A rank ends regularly; `host_ns` is its clock at that moment."""
        self._host_ns[rank] = host_ns

    def end(self, rank: int) -> list[Outgoing]:
        """The process of a rank has ended."""
        self._ended.add(rank)
        self._draining.discard(rank)
        for joining in self._joining.values():
            joining.forget(rank)
        for dividing in self._dividing.values():
            dividing.forget(rank)
        answers: list[Outgoing] = []
        for number in list(self._communicators_of.get(rank, ())):
            answers += self._leave_communicator(rank, number, withdraw=False)
        return answers

    # ---- queries ----

    def waits(self) -> Iterator[PendingWait]:
        """All incomplete calls, with the ranks that wait and those that are missing."""
        for joining in self._joining.values():
            if joining.waiting():
                yield PendingWait(f"a new communicator of {joining.ranks}", 0, 0, joining.waiting(), joining.missing())
        for (parent, sequence), dividing in self._dividing.items():
            if dividing.waiting():
                yield PendingWait(dividing.what, parent, sequence, dividing.waiting(), dividing.missing())
        for communicator in self.each_communicator():
            yield from communicator.waits()

    def describe(self) -> dict[int, list[PendingWait]]:
        """The calls that each rank waits for."""
        by_rank: dict[int, list[PendingWait]] = {}
        for wait in self.waits():
            for rank in wait.waiting:
                by_rank.setdefault(rank, []).append(wait)
        return by_rank

    @property
    def joined(self) -> int:
        """How many ranks have ever started."""
        return len(self._steps)

    @property
    def ended(self) -> int:
        return len(self._ended)

    @property
    def steps(self) -> int:
        """Optimizer steps that every rank has made; with several optimizers, those of the one with most steps."""
        return min(self._steps.values(), default=0)

    def is_draining(self, rank: int) -> bool:
        """Whether the rank's program has ended and its process only completes the calls in its streams."""
        return rank in self._draining

    def clock(self, rank: int) -> int:
        """A rank's clock in its last message, in ns."""
        return self._host_ns.get(rank, 0)

    @property
    def posts(self) -> int:
        return self._posts

    @property
    def activity(self) -> int:
        """A number that changes whenever a rank sends a request, starts or ends."""
        return self._posts + self._requests + len(self._steps) + len(self._ended)

    def disagreements(self) -> Iterator[tuple[Communicator, PendingCollective]]:
        """The last collective of each communicator whose posts disagreed."""
        for communicator in self.each_communicator():
            if communicator.disagreement is not None:
                yield communicator, communicator.disagreement

    def communicator(self, number: int) -> Communicator | None:
        return self._communicators.get(number)

    @property
    def collectives(self) -> int:
        """How many collectives are complete."""
        return self._collectives + sum(communicator.completed for communicator in self.each_communicator())

    @property
    def communicators(self) -> int:
        """How many communicators were ever created."""
        return self._made

    # ---- communicators ----

    def _log(self, rank: int, message: Describe) -> list[Outgoing]:
        communicator = self._communicators.get(message.communicator)
        member = None if communicator is None else communicator.member(rank, message.communicator)
        text = ""
        if communicator is not None and member is not None:
            text = self._times.communicator_log(communicator.members, member, message.handle)
        return [(rank, Described(message.request, text), None)]

    def each_communicator(self) -> Iterator[Communicator]:
        return (communicator for number, communicator in self._communicators.items() if number == communicator.number)

    def _unknown(self, rank: int, number: int) -> str:
        if number in self._communicators:
            return f"rank {rank} is not a member of communicator {number}"
        return f"rank {rank} used communicator {number}, which does not exist or was destroyed"

    def _join(self, rank: int, join: Join) -> list[Outgoing]:
        joining = self._joining.get(join.key)
        if joining is None:
            joining = self._joining[join.key] = Joining(join.ranks, self.absent)
        outcome = joining.add(rank, join)
        if outcome.groups:
            del self._joining[join.key]
        return self._answers(outcome)

    def complete_joins(self) -> list[Outgoing]:
        """Complete communicator inits in a job with absent ranks. Call it after each turn of the store: joins and
        unique ids arrive on different connections."""
        answers: list[Outgoing] = []
        for key, joining in list(self._joining.items()):
            outcome = joining.outcome(key)
            if outcome.groups:
                del self._joining[key]
            answers += self._answers(outcome)
        return answers

    def _divide(self, rank: int, request: Split | Shrink) -> list[Outgoing]:
        parent = self._communicators.get(request.parent)
        if parent is None or rank not in parent.member_of:
            text = self._unknown(rank, request.parent)
            return [(rank, RequestFailed(request.request, INVALID_ARGUMENT, text), None)]
        if parent.has_repeated_ranks:
            text = "a communicator that has several members in one process cannot be split or shrunk"
            return [(rank, RequestFailed(request.request, INVALID_USAGE, text), None)]
        key = (request.parent, request.sequence)
        dividing = self._dividing.get(key)
        if dividing is None:
            dividing = self._dividing[key] = Dividing(parent.members, parent.member_of, request, self.absent)
        outcome = dividing.add(rank, request)
        if outcome.groups or outcome.without:
            del self._dividing[key]
        return self._answers(outcome)

    def _answers(self, outcome: MembershipOutcome) -> list[Outgoing]:
        answers: list[Outgoing] = [(rank, failure, None) for rank, failure in outcome.failures]
        answers += [(rank, Joined(request, 0, 0, (), 0), None) for rank, request in outcome.without]
        for group in outcome.groups:
            communicator, instance = self._make(group.members, group.origin)
            for member, (rank, request) in enumerate(zip(group.members, group.requests, strict=True)):
                number = communicator.number_of(member)
                if request is not None:
                    answers.append((rank, Joined(request, number, member, group.members, instance), None))
                elif self._is_present(rank):
                    answers += self._leave_communicator(rank, number, withdraw=False)
        return answers

    def _is_present(self, rank: int) -> bool:
        return self.absent is None or self.absent.is_present(rank)

    def _make(self, members: tuple[int, ...], origin: CommunicatorOrigin | None) -> tuple[Communicator, int]:
        """A new communicator, and how many with the same members came before it."""
        absent = frozenset(member for member, rank in enumerate(members) if not self._is_present(rank))
        siblings = self.absent.siblings_of(origin) if self.absent is not None and origin is not None else None
        communicator = Communicator(self._last_number + 1, members, self._times, absent, siblings)
        self._last_number = communicator.numbers[-1]
        self._made += 1
        instance = self._instances.get(members, 0)
        self._instances[members] = instance + 1
        communicator.instance = instance
        if self.absent is not None:
            self.origins[members, instance] = origin
        for number in communicator.numbers:
            self._communicators[number] = communicator
        for member, rank in enumerate(members):
            if member not in absent:
                self._communicators_of.setdefault(rank, set()).add(communicator.number_of(member))
        return communicator, instance

    def _drain(self, rank: int, drain: Drain) -> list[Outgoing]:
        self._draining.add(rank)
        self._host_ns[rank] = drain.host_ns
        answers: list[Outgoing] = []
        for number in sorted(self._communicators_of.get(rank, ())):
            communicator = self._communicators[number]
            member = communicator.member(rank, number)
            assert member is not None
            answers += communicator.drain(member)
        return answers

    def _leave(self, rank: int, leave: Leave) -> list[Outgoing]:
        communicator = self._communicators.get(leave.communicator)
        if communicator is None or communicator.member(rank, leave.communicator) is None:
            return []
        return self._leave_communicator(rank, leave.communicator, withdraw=leave.ending == Ending.ABORTED)

    def _leave_communicator(self, rank: int, number: int, *, withdraw: bool) -> list[Outgoing]:
        communicator = self._communicators[number]
        member = communicator.member(rank, number)
        assert member is not None
        answers = communicator.leave(member, withdraw=withdraw)
        self._communicators_of[rank].discard(number)
        if communicator.is_abandoned:
            self._collectives += communicator.completed
            for each in communicator.numbers:
                del self._communicators[each]
            for key in [key for key in self._dividing if key[0] == communicator.number]:
                del self._dividing[key]
        return answers
