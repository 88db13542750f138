"""Values that absent ranks would send, taken from their siblings.

The k-th process groups of all ranks are siblings: the tensor-parallel groups of a job, say, or its pipelines. In each
of them the member in the same place makes the same calls. So an absent member's send, or its broadcast as the root,
carries what the member in the same place of a sibling group sends as its n-th send to that place, or its n-th call as
the root. If several such members are present, it is the one with the smallest rank, whichever posts first.

In: sends and broadcasts of present members, calls that wait for those of absent members. Out: which calls can go on. A
post is kept until every present rank that needs it has taken it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from coordinator.answers import Outgoing
from coordinator.arithmetic import Buffer
from rank_runtime.messages import Post

SiblingKey = tuple[
    int, int, int
]  # place of the sender; of the receiver, or -1: a broadcast or scatter; number of the send, or of the root's call


@dataclass(frozen=True, slots=True)
class SentPost:
    """A send, or the call of a root, with its payload."""

    post: Post
    payload: Buffer | None


Continuation = Callable[[SentPost], list[Outgoing]]


class Siblings:
    """The posts on the communicators of sibling groups."""

    def __init__(self, groups: Sequence[Sequence[int]], present: Collection[int]) -> None:
        """`groups`: the members of each, ranks of the job."""
        self._ranks = present
        self._present: list[list[bool]] = []
        self._groups: list[Sequence[int]] = []
        self._senders: dict[int, int] = {}  # by place; a group that is added later does not change it
        self._kept: dict[SiblingKey, tuple[SentPost, int]] = {}  # with the number of ranks that will still take it
        self._waiting: dict[SiblingKey, list[Continuation]] = {}
        for members in groups:
            self.add(members)

    def add(self, members: Sequence[int]) -> None:
        """Add a group that is created after others, whose communicators may exist already."""
        self._present.append([rank in self._ranks for rank in members])
        self._groups.append(members)

    def sender(self, place: int) -> int | None:
        """The present rank whose posts stand for those of the absent ranks in a place; None: none is present."""
        if place not in self._senders:
            ranks = (
                members[place] for members, present in zip(self._groups, self._present, strict=True) if present[place]
            )
            found = min(ranks, default=None)
            if found is None:
                return None
            self._senders[place] = found
        return self._senders[place]

    def send(self, rank: int, key: SiblingKey, sent: SentPost) -> list[Outgoing]:
        """A present member has sent; answers to the calls that have waited for it."""
        if rank != self.sender(key[0]):
            return []
        waiting = self._waiting.pop(key, [])
        left = self._takers(*key[:2]) - len(waiting)
        if left > 0:
            self._kept[key] = (sent, left)
        return [answer for go_on in waiting for answer in go_on(sent)]

    def receive(self, key: SiblingKey, go_on: Continuation) -> list[Outgoing]:
        """A call needs the post of an absent member: continue it now, or when a sibling has posted."""
        kept = self._kept.pop(key, None)
        if kept is None:
            self._waiting.setdefault(key, []).append(go_on)
            return []
        sent, left = kept
        if left > 1:
            self._kept[key] = (sent, left - 1)
        return go_on(sent)

    def _takers(self, sender: int, receiver: int) -> int:
        """The groups in which the sender is absent and the receiver, or any member, is present."""
        return sum(
            1
            for present in self._present
            if not present[sender] and (any(present) if receiver < 0 else present[receiver])
        )
