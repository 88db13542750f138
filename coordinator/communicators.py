"""A communicator: its members, and the calls that they have posted on it.

In: posts of members, members that leave. Out: answers, as (rank, message, payload). Posts are matched by sequence
number. If posts with one number disagree, each of them is answered with an error that says who posted what. Completed
calls are forgotten.

Absent members (absent_ranks.py) never post. A collective is complete when all present members have posted it; each
absent member contributes what the closest present member before it contributes. A send to an absent member completes
by itself. A recv from an absent member, and a broadcast from one, gets what its sibling sends (sibling_posts.py); if no
rank in its place is present, the recv completes by itself, with unknown values.

A member whose program has ended drains: it waits only for calls that can still complete. If a call lacks a member that
has ended or left, it is abandoned, as torch aborts it when a process on a GPU ends. Members whose programs are still
running keep waiting: for them it is a hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.answers import INVALID_ARGUMENT, INVALID_USAGE, SYSTEM_ERROR, Outgoing
from coordinator.arithmetic import Buffer
from coordinator.call_history import CallHistory, PastCall
from coordinator.call_sites import UNKNOWN
from coordinator.collectives import FROM_ROOT, ROOTED, PendingCollective, send_bytes, signature_of
from coordinator.descriptions import post_text
from coordinator.point_to_point import Answer, Channel, FinishedSequences
from coordinator.sibling_posts import Continuation, SentPost, SiblingKey, Siblings
from coordinator.time_model import NO_TIME_MODEL, TimeModel
from maya.util.ranks import ranks_text
from rank_runtime.messages import Abandoned, Call, Done, Failed, Post

_LARGEST_BUFFER = 1 << 62


@dataclass(frozen=True)
class PendingWait:
    """A call that is not complete: the ranks that wait in it, and those that are missing."""

    what: str
    communicator: int  # 0: a communicator that is still being created
    sequence: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]  # ranks; members if the communicator is still being created
    post: Post | None = field(default=None, compare=False)  # of one rank that waits
    members: tuple[int, ...] = field(default=(), compare=False)  # of the communicator
    collective: PendingCollective | None = field(default=None, compare=False)

    def site_of(self, rank: int) -> int:
        """The call site of a rank that waits."""
        if self.collective is not None:
            return self.collective.site_of(self.members.index(rank))
        return UNKNOWN if self.post is None else self.post.site

    def __str__(self) -> str:
        subject = f"{ranks_text(self.waiting)} {'waits' if len(self.waiting) == 1 else 'wait'}"
        if self.communicator == 0:
            return f"{subject} for {ranks_text(self.missing, 'member')} of {self.what}"
        where = f"({self.sequence} on communicator {self.communicator})"
        return f"{subject} for {ranks_text(self.missing)}: {self.what} {where}"


class Communicator:
    """Members of one communicator, by their rank in it.

    A process that drives several devices can be several members (ncclCommInitAll). A rank's messages do not name the
    member, so each member of such a process knows the communicator by a number of its own.
    """

    def __init__(
        self,
        number: int,
        members: tuple[int, ...],
        times: TimeModel = NO_TIME_MODEL,
        absent: frozenset[int] = frozenset(),
        siblings: Siblings | None = None,
    ) -> None:
        self.members = members
        self._absent = absent
        self._siblings = siblings
        self._stand_ins = _stand_ins(len(members), absent) if absent else None
        self._times = times
        self.member_of = {rank: member for member, rank in enumerate(members)}
        self.has_repeated_ranks = len(self.member_of) < len(members)
        self.numbers = range(number, number + (len(members) if self.has_repeated_ranks else 1))
        self._gone: set[int] = set()  # members that left or ended
        self._draining: set[int] = set()  # members whose programs have ended
        self._collectives: dict[int, PendingCollective] = {}
        self._finished = FinishedSequences()
        self._channels: dict[tuple[int, int], Channel] = {}
        self._awaited: dict[SiblingKey, tuple[Post, tuple[int, ...]]] = {}  # calls and members that wait for siblings
        self._from_root: dict[int, int] = {}  # by place, calls of which it was the root
        self.completed = 0
        self.history = CallHistory()
        self.instance = 0  # how many communicators with the same members came before it
        self.disagreement: PendingCollective | None = None  # the last one whose posts disagreed

    @property
    def number(self) -> int:
        """The first of its numbers."""
        return self.numbers[0]

    def number_of(self, member: int) -> int:
        """The number by which a member knows it."""
        return self.numbers[member] if self.has_repeated_ranks else self.number

    def member(self, rank: int, number: int) -> int | None:
        """The member for which a rank uses the communicator number `number`; None: the rank is not a member."""
        if not self.has_repeated_ranks:
            return self.member_of.get(rank)
        member = number - self.number
        return member if self.members[member] == rank else None

    def post(self, member: int, post: Post, payload: Buffer | None) -> list[Outgoing]:
        """Take a member's post; the answers that follow from it."""
        rank = self.members[member]
        if member in self._gone:
            return self._refuse(rank, post, "it has left the communicator")
        if post.call >= Call.SEND:
            return self._post_to_peer(member, post, payload)
        collective = self._collectives.get(post.sequence)
        if collective is None:
            if post.sequence in self._finished:
                return self._refuse(rank, post, "it was posted before and is complete")
            complaint = self._complaint(post, member, payload)
            if complaint:
                return self._refuse(rank, post, complaint)
            collective = self._collectives[post.sequence] = PendingCollective(post, len(self.members), self._stand_ins)
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
            is_root = post.call in FROM_ROOT and member == post.peer
            answers = self._pass_on((member, -1, self._next_from(member)), post, payload) if is_root else []
            if collective.missing:
                return answers + (self._abandon() if member in self._draining else [])
            return answers + self._complete_from_root(collective)
        except MemoryError:
            return self._out_of_memory(collective)

    def drain(self, member: int) -> list[Outgoing]:
        """The member's program has ended: from now on it posts only the calls that its streams still hold."""
        self._draining.add(member)
        return self._abandon()

    def leave(self, member: int, *, withdraw: bool) -> list[Outgoing]:
        """A member neither posts nor reads answers any more. Its posts remain, unless they are withdrawn."""
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
        """Whether every member has left."""
        return len(self._gone) + len(self._absent) == len(self.members)

    def waits(self) -> Iterator[PendingWait]:
        """The calls that are not complete."""
        members = self.members
        for sequence, collective in self._collectives.items():
            waiting = tuple(members[member] for member, token in collective.tokens.items() if token is not None)
            if waiting and not collective.variants:
                missing = tuple(
                    rank
                    for member, rank in enumerate(members)
                    if member not in collective.tokens and member not in self._absent
                )
                what = post_text(collective.post, members)
                yield PendingWait(what, self.number, sequence, waiting, missing, collective.post, members, collective)
        for channel in self._channels.values():
            for member, other, post in channel.unanswered():
                what = post_text(post, members)
                yield PendingWait(
                    what, self.number, post.sequence, (members[member],), (members[other],), post, members
                )
        for (sender, *_), (post, places) in self._awaited.items():
            assert self._siblings is not None
            ranks = tuple(members[place] for place in places)
            sibling = self._siblings.sender(sender)
            assert sibling is not None
            yield PendingWait(post_text(post, members), self.number, post.sequence, ranks, (sibling,), post, members)

    def call_runs(self) -> list[list[PastCall]]:
        """The known history of collectives, those that are not complete included: runs without gaps, in order."""
        pending = [collective.past_call(sequence) for sequence, collective in self._collectives.items()]
        return self.history.calls(pending)

    # ---- collectives ----

    def _complaint(self, post: Post, member: int, payload: Buffer | None) -> str:
        """The problem with a post by itself; empty: none."""
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

    def _complete_from_root(self, collective: PendingCollective) -> list[Outgoing]:
        """Complete a collective. If its root is absent, its siblings' root determines the values."""
        root = collective.post.peer
        if collective.post.call not in FROM_ROOT or not self._has_sibling(root):
            return self._complete(collective)

        def go_on(sent: SentPost) -> list[Outgoing]:
            if sent.payload is not None:
                collective.add_absent(root, sent.post, sent.payload)
            return self._complete(collective)

        waiting = tuple(member for member, token in collective.tokens.items() if token is not None)
        return self._await_sibling((root, -1, self._next_from(root)), collective.post, waiting, go_on)

    def _next_from(self, root: int) -> int:
        """How many calls with this root came before. Siblings count these calls only, because the stages of a pipeline
        make different other ones."""
        number = self._from_root.get(root, 0)
        self._from_root[root] = number + 1
        return number

    def _has_sibling(self, member: int) -> bool:
        """Whether an absent member's posts are known from a sibling."""
        return member in self._absent and self._siblings is not None and self._siblings.sender(member) is not None

    def _await_sibling(
        self, key: SiblingKey, post: Post, waiting: tuple[int, ...], go_on: Continuation
    ) -> list[Outgoing]:
        """Continue the call of some members when the sibling of an absent sender has posted."""
        assert self._siblings is not None
        self._awaited[key] = (post, waiting)

        def stop_waiting(sent: SentPost) -> list[Outgoing]:
            del self._awaited[key]
            return go_on(sent)

        return self._siblings.receive(key, stop_waiting)

    def _pass_on(self, key: SiblingKey, post: Post, payload: Buffer | None) -> list[Outgoing]:
        """Let siblings whose sender is absent go on with this post."""
        if self._siblings is None:
            return []
        return self._siblings.send(self.members[key[0]], key, SentPost(post, payload))

    def _finish(self, collective: PendingCollective) -> None:
        sequence = collective.post.sequence
        self._collectives.pop(sequence, None)
        self._finished.add(sequence)
        self.history.add(collective.past_call(sequence))

    def _disagree(self, collective: PendingCollective, member: int, post: Post) -> list[Outgoing]:
        """Answer all posts so far, and all that follow, with an error."""
        collective.disagree(member, post)
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
        text = f"the coordinator does not have enough memory for {post_text(collective.post, self.members)}"
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

    # ---- send/recv ----

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
        if not is_send and self._has_sibling(post.peer):
            return self._await_sibling(
                (post.peer, member, post.sequence),
                post,
                (member,),
                lambda sent: self._addressed(channel.receive_sibling(post, sent.post, sent.payload)),
            )
        if post.peer in self._absent:
            answers = channel.complete_alone(post)
        else:
            answers = channel.send(post, payload) if is_send else channel.receive(post)
        sent = self._addressed(answers) + (self._pass_on((*ends, post.sequence), post, payload) if is_send else [])
        return sent + (self._abandon() if member in self._draining else [])

    def _addressed(self, answers: list[Answer]) -> list[Outgoing]:
        return [(self.members[to], message, buffer) for to, message, buffer in answers]

    # ---- draining members ----

    def _abandon(self) -> list[Outgoing]:
        """Answer draining members whose calls can never complete because a missing member has left."""
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
            f"program ended and is dropped: {ranks_text(ranks)} left without calling it"
        )
        return self.members[member], Abandoned(token, text), None


def _stand_ins(members: int, absent: frozenset[int]) -> dict[int, list[int]]:
    """For each present member, the absent members that it stands for: those up to the next present one."""
    stand_ins: dict[int, list[int]] = {}
    last = next(member for member in range(members) if member not in absent)  # also for those before it
    for member in range(members):
        if member not in absent:
            last = member
        of_last = stand_ins.setdefault(last, [])
        if member in absent:
            of_last.append(member)
    return stand_ins
