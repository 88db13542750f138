"""A communicator: its members, and what they have posted on it.

In: posts of members, members that leave. Out: answers, as (rank, message, payload). Posts are matched by sequence
number; posts of one number that do not agree are all answered with a text that says who posted what. What is complete
is forgotten.

A member whose program has ended drains: it waits only for calls that can still complete. Calls for which a member is
missing that ended or left are abandoned, as torch aborts them when a process ends on a GPU. Other members, whose
programs go on, keep waiting: for them it is a hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.arithmetic import Buffer
from coordinator.collectives import ROOTED, PendingCollective, send_bytes, signature_of
from coordinator.descriptions import post_text
from coordinator.point_to_point import Channel
from coordinator.results import INVALID_ARGUMENT, INVALID_USAGE, SYSTEM_ERROR
from coordinator.sequences import Sequences
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from maya.util.ranks import ranks_text
from rank_runtime.messages import Abandoned, Call, Done, Failed, FromCoordinator, Post

Outgoing = tuple[int, FromCoordinator, Buffer | None]  # to which rank

_LARGEST_BUFFER = 1 << 62


@dataclass(frozen=True)
class PendingWait:
    """Ranks that wait, for what, and who is missing for it."""

    what: str
    communicator: int  # 0: it is not complete yet
    sequence: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]  # ranks; of a communicator that is not complete, members, for who they are is not known
    post: Post | None = field(default=None, compare=False)  # one of those that wait
    members: tuple[int, ...] = field(default=(), compare=False)  # of the communicator

    def __str__(self) -> str:
        subject = f"{ranks_text(self.waiting)} {'waits' if len(self.waiting) == 1 else 'wait'}"
        if self.communicator == 0:
            return f"{subject} for {ranks_text(self.missing, 'member')} of {self.what}"
        where = f"({self.sequence} on communicator {self.communicator})"
        return f"{subject} for {ranks_text(self.missing)}: {self.what} {where}"


class Communicator:
    """Members of one communicator, by their rank in it.

    A process that drives several devices can be several members (ncclCommInitAll). The messages of ranks do not say for
    which member they are, so then every member knows the communicator by a number of its own.
    """

    def __init__(self, number: int, members: tuple[int, ...], times: TimeModel = NO_TIME_MODEL) -> None:
        self.members = members
        self._times = times
        self.member_of = {rank: member for member, rank in enumerate(members)}
        self.has_repeated_ranks = len(self.member_of) < len(members)
        self.numbers = range(number, number + (len(members) if self.has_repeated_ranks else 1))
        self._gone: set[int] = set()  # members that left or ended
        self._draining: set[int] = set()  # members whose programs have ended
        self._collectives: dict[int, PendingCollective] = {}
        self._finished = Sequences()
        self._channels: dict[tuple[int, int], Channel] = {}
        self.completed = 0
        self.instance = 0  # which one of these members it is
        self.disagreement: PendingCollective | None = None  # the last of which the posts did not agree

    @property
    def number(self) -> int:
        """The first of its numbers."""
        return self.numbers[0]

    def number_of(self, member: int) -> int:
        """The number by which a member knows it."""
        return self.numbers[member] if self.has_repeated_ranks else self.number

    def member(self, rank: int, number: int) -> int | None:
        """The member that a rank is, which knows the communicator by `number`."""
        if not self.has_repeated_ranks:
            return self.member_of.get(rank)
        member = number - self.number
        return member if self.members[member] == rank else None

    def post(self, member: int, post: Post, payload: Buffer | None) -> list[Outgoing]:
        """A post of a member."""
        rank = self.members[member]
        if member in self._gone:
            return self._refuse(rank, post, "it has left the communicator")
        if post.call >= Call.SEND:
            return self._post_to_peer(member, post, payload)
        collective = self._collectives.get(post.sequence)
        if collective is None:
            if post.sequence in self._finished:
                return self._refuse(rank, post, "it was posted before, and is complete")
            complaint = self._complaint(post, member, payload)
            if complaint:
                return self._refuse(rank, post, complaint)
            collective = self._collectives[post.sequence] = PendingCollective(post, len(self.members))
        elif member in collective.tokens:
            return self._refuse(rank, post, "it was posted before")
        elif collective.variants or collective.signature != signature_of(post):
            return self._disagree(collective, member, post)
        elif payload is not None:
            complaint = self._complaint(post, member, payload)
            if complaint:
                return self._refuse(rank, post, complaint)
        try:
            collective.add(member, post, payload)
            if collective.missing:
                return self._abandon() if member in self._draining else []
            return self._complete(collective)
        except MemoryError:
            return self._out_of_memory(collective)

    def drain(self, member: int) -> list[Outgoing]:
        """The member's program has ended: it posts what its streams hold, and nothing else."""
        self._draining.add(member)
        return self._abandon()

    def leave(self, member: int, *, withdraw: bool) -> list[Outgoing]:
        """A member will not post again, nor read answers. What it posted stays posted, unless it is withdrawn."""
        self._gone.add(member)
        self._draining.discard(member)
        for collective in self._collectives.values():
            if collective.tokens.get(member) is None:
                continue
            if withdraw:
                collective.withdraw(member)
            else:
                collective.forget(member)
        for channel in self._channels.values():
            channel.leave(member, withdraw=withdraw)
        return self._abandon()

    @property
    def is_abandoned(self) -> bool:
        """Whether no member is left."""
        return len(self._gone) == len(self.members)

    def waits(self) -> Iterator[PendingWait]:
        """What is not complete."""
        members = self.members
        for sequence, collective in self._collectives.items():
            waiting = tuple(members[member] for member, token in collective.tokens.items() if token is not None)
            if waiting and not collective.variants:
                missing = tuple(rank for member, rank in enumerate(members) if member not in collective.tokens)
                what = post_text(collective.post, members)
                yield PendingWait(what, self.number, sequence, waiting, missing, collective.post, members)
        for channel in self._channels.values():
            for member, other, post in channel.unanswered():
                what = post_text(post, members)
                yield PendingWait(
                    what, self.number, post.sequence, (members[member],), (members[other],), post, members
                )

    # ---- collectives ----

    def _complaint(self, post: Post, member: int, payload: Buffer | None) -> str:
        """What is wrong with a post, apart from the others."""
        members = len(self.members)
        if (post.call in ROOTED or post.call >= Call.SEND) and not 0 <= post.peer < members:
            return f"its root or peer is {post.peer}, expected 0 to {members - 1}"
        if post.count * members * 8 > _LARGEST_BUFFER:
            return f"{post.count} elements are more than any memory holds"
        if payload is not None:
            size = send_bytes(post, member, members)
            if post.known and post.known[-1] > size:
                return f"bytes up to {post.known[-1]} are known of its send buffer, which has {size}"
        return ""

    def _complete(self, collective: PendingCollective) -> list[Outgoing]:
        self._finish(collective)
        self.completed += 1
        members = self.members
        started = collective.arrival_ns
        ended = started + self._times.collective_ns(collective.post, members)
        known, payload = collective.result(0)
        answers: list[Outgoing] = []
        same_for_all = collective.is_same_for_all
        for member, token in collective.tokens.items():
            if token is not None:
                if not same_for_all:
                    known, payload = collective.result(member)
                done = Done(token, known, payload is not None, started, ended, collective.guessed)
                answers.append((members[member], done, payload))
        return answers

    def _finish(self, collective: PendingCollective) -> None:
        sequence = collective.post.sequence
        self._collectives.pop(sequence, None)
        self._finished.add(sequence)

    def _disagree(self, collective: PendingCollective, member: int, post: Post) -> list[Outgoing]:
        """Everybody who has posted gets an error, and so does everybody who will."""
        collective.disagree(member, signature_of(post))
        self.disagreement = collective
        text = (
            f"collective {post.sequence} on communicator {self.number} ({ranks_text(self.members)}) does not match: "
            f"{collective.disagreement(self.members)}"
        )
        waiting = [*((other, token) for other, token in collective.tokens.items()), (member, post.token)]
        collective.tokens = {other: None for other, _ in waiting}
        collective.missing -= 1
        if not collective.missing:
            self._finish(collective)
        return [
            (self.members[other], Failed(token, INVALID_USAGE, text), None)
            for other, token in waiting
            if token is not None
        ]

    def _out_of_memory(self, collective: PendingCollective) -> list[Outgoing]:
        text = f"the coordinator has not enough memory for {post_text(collective.post, self.members)}"
        self._finish(collective)
        return [
            (self.members[member], Failed(token, SYSTEM_ERROR, text), None)
            for member, token in collective.tokens.items()
            if token is not None
        ]

    def _refuse(self, rank: int, post: Post, why: str) -> list[Outgoing]:
        text = (
            f"rank {rank} posted {post_text(post, self.members)} ({post.sequence} on communicator {self.number}): {why}"
        )
        return [(rank, Failed(post.token, INVALID_ARGUMENT, text), None)]

    # ---- send and receive ----

    def _post_to_peer(self, member: int, post: Post, payload: Buffer | None) -> list[Outgoing]:
        rank = self.members[member]
        complaint = self._complaint(post, member, payload)
        if complaint:
            return self._refuse(rank, post, complaint)
        is_send = post.call == Call.SEND
        ends = (member, post.peer) if is_send else (post.peer, member)
        channel = self._channels.get(ends)
        if channel is None:
            channel = self._channels[ends] = Channel(self.members, *ends, self._times)
        if channel.has_send(post.sequence) if is_send else channel.has_receive(post.sequence):
            return self._refuse(rank, post, "it was posted before")
        answers = channel.send(post, payload) if is_send else channel.receive(post)
        sent: list[Outgoing] = [(self.members[to], message, buffer) for to, message, buffer in answers]
        return sent + (self._abandon() if member in self._draining else [])

    # ---- members that drain ----

    def _abandon(self) -> list[Outgoing]:
        """Answers to draining members whose calls can never complete, because a missing member is gone."""
        answers: list[Outgoing] = []
        if not self._draining or not self._gone:
            return answers
        for collective in self._collectives.values():
            waiting = [member for member in self._draining if collective.tokens.get(member) is not None]
            gone = sorted(self._gone.difference(collective.tokens))
            if not waiting or not gone or collective.variants:
                continue
            for member in sorted(waiting):
                token = collective.tokens[member]
                assert token is not None
                collective.forget(member)
                answers.append(self._abandoned(member, token, collective.post, gone))
        for channel in self._channels.values():
            for member, other, post in list(channel.unanswered()):
                if member in self._draining and other in self._gone:
                    channel.abandon(post)
                    answers.append(self._abandoned(member, post.token, post, [other]))
        return answers

    def _abandoned(self, member: int, token: int, post: Post, gone: list[int]) -> Outgoing:
        ranks = [self.members[each] for each in gone]
        text = (
            f"{post_text(post, self.members)} ({post.sequence} on communicator {self.number}) was queued when the "
            f"program ended, and is dropped: {ranks_text(ranks)} left without calling it"
        )
        return self.members[member], Abandoned(token, text), None
