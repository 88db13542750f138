"""One collective: who has posted it, whether the posts agree, and what every member receives.

In: the members' posts, in any order. Out: for each member what its receive buffer holds and which bytes of it are
known. A contribution is worked into the result when it arrives, so that buffers do not pile up: reductions are combined
(arithmetic.py), gathered buffers are laid into their place. Contributions without a payload count as zeros, none of
which is known. Of a reduction only those elements are known that are known of every member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coordinator import intervals
from coordinator.arithmetic import ITEM_BYTES, Buffer, Reducer
from coordinator.intervals import Intervals
from coordinator.texts import call_text, ranks_text
from rank_runtime.messages import Call, Post

Signature = tuple[int, int, int, int, int]  # call, count, data type, reduction, root: what all members must agree on

ROOTED = frozenset({Call.REDUCE, Call.BROADCAST, Call.GATHER, Call.SCATTER})
_FROM_ROOT = frozenset({Call.BROADCAST, Call.SCATTER})
_TO_ROOT = frozenset({Call.REDUCE, Call.GATHER})
_REDUCING = frozenset({Call.ALL_REDUCE, Call.REDUCE, Call.REDUCE_SCATTER})
_SENDING_TO_ALL = frozenset({Call.REDUCE_SCATTER, Call.ALL_TO_ALL, Call.SCATTER})  # count elements for every member

_NOTHING: tuple[Intervals, Buffer | None] = (intervals.NONE, None)


def signature_of(post: Post) -> Signature:
    return (post.call, post.count, post.data_type, post.reduction, post.peer)


def send_bytes(post: Post, member: int, members: int) -> int:
    """Size of a member's send buffer."""
    if post.call == Call.RECEIVE or (post.call in _FROM_ROOT and member != post.peer):
        return 0
    return post.count * ITEM_BYTES[post.data_type] * (members if post.call in _SENDING_TO_ALL else 1)


class Collective:
    """Posts of one sequence number on one communicator."""

    __slots__ = ("_members", "_parts", "missing", "post", "signature", "tokens", "variants")

    def __init__(self, post: Post, members: int) -> None:
        self.post = post  # the first one
        self.signature = signature_of(post)
        self._members = members
        self.tokens: dict[int, int | None] = {}  # of the members that have posted; None: nobody waits for the answer
        self.missing = members
        self.variants: dict[Signature, list[int]] = {}  # if not all posts agree: who posted what
        self._parts: _Parts | None = None

    def add(self, member: int, post: Post, payload: Buffer | None) -> None:
        """A member's post, which agrees with the others'."""
        self.tokens[member] = post.token
        self.missing -= 1
        if payload is not None:
            if self._parts is None:
                self._parts = _parts_for(post, self._members)
            self._parts.add(member, post.known, payload)
        elif post.call in _REDUCING:
            self._parts = _NothingKnown()  # whatever else comes

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        """What a member receives, and which of its bytes are known; no payload if none are."""
        if self._parts is None or (self.post.call in _TO_ROOT and member != self.post.peer):
            return _NOTHING
        return self._parts.result(member)

    @property
    def is_same_for_all(self) -> bool:
        """Whether every member receives the same."""
        return self._parts is None or self.post.call in (Call.ALL_REDUCE, Call.ALL_GATHER, Call.BROADCAST)

    def forget(self, member: int) -> None:
        """A member does not wait for the answer any more; its contribution stays."""
        self.tokens[member] = None

    def withdraw(self, member: int) -> None:
        """A member takes back its post, and will not post again: the collective will never be complete."""
        del self.tokens[member]
        self.missing += 1

    # ---- posts that do not agree ----

    def disagree(self, member: int, signature: Signature) -> None:
        """A member's post, after which the collective can never be completed."""
        if not self.variants:
            self.variants[self.signature] = list(self.tokens)
            self._parts = None
        self.variants.setdefault(signature, []).append(member)

    def disagreement(self, members: Sequence[int]) -> str:
        return "; ".join(
            f"{ranks_text(members[member] for member in group)} posted {call_text(*signature, members)}"
            for signature, group in self.variants.items()
        )


class _Parts(Protocol):
    """What has arrived of a collective."""

    def add(self, member: int, known: Intervals, payload: Buffer) -> None: ...
    def result(self, member: int) -> tuple[Intervals, Buffer | None]: ...


def _parts_for(post: Post, members: int) -> _Parts:
    part_bytes = post.count * ITEM_BYTES[post.data_type]
    if post.call in _REDUCING:
        return _Reduced(post, members)
    if post.call in (Call.ALL_GATHER, Call.GATHER):
        return _Gathered(members, part_bytes)
    if post.call == Call.ALL_TO_ALL:
        return _Exchanged(members, part_bytes)
    return _FromRoot(part_bytes, scattered=post.call == Call.SCATTER)


class _NothingKnown:
    """A reduction of which one contribution is not known."""

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        pass

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        return _NOTHING


class _Reduced:
    """All-reduce, reduce, reduce-scatter."""

    def __init__(self, post: Post, members: int) -> None:
        self._item_bytes = ITEM_BYTES[post.data_type]
        scattered = post.call == Call.REDUCE_SCATTER
        count = post.count * (members if scattered else 1)
        self._part_bytes = post.count * self._item_bytes if scattered else 0
        self._known: Intervals = (0, count * self._item_bytes)
        self._reducer: Reducer | None = Reducer(members, count, post.data_type, post.reduction)
        self._result: Buffer | None = None

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        if self._reducer is None:
            return
        if len(known) != 2 or known[0] != 0 or known[1] != len(payload):
            common = intervals.intersection(self._known, known)
            self._known = intervals.whole_elements(common, self._item_bytes)
        if not self._known:
            self._reducer = None  # whatever comes: nothing of the result will be known
            return
        self._reducer.add(member, payload)

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if self._reducer is None:
            return _NOTHING
        if self._result is None:
            self._result = memoryview(self._reducer.result())
        if self._part_bytes == 0:
            return self._known, self._result
        first = member * self._part_bytes
        known = intervals.part(self._known, first, first + self._part_bytes)
        return (known, self._result[first : first + self._part_bytes]) if known else _NOTHING


class _Gathered:
    """All-gather, gather."""

    def __init__(self, members: int, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._buffer = np.zeros(members * part_bytes, np.uint8).data
        self._known: list[Intervals] = [intervals.NONE] * members
        self._all_known: Intervals | None = None

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        self._known[member] = known
        self._buffer[member * self._part_bytes : (member + 1) * self._part_bytes] = payload

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if self._all_known is None:
            self._all_known = intervals.concatenation(self._known, self._part_bytes)
        return (self._all_known, self._buffer) if self._all_known else _NOTHING


class _Exchanged:
    """All-to-all."""

    def __init__(self, members: int, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._buffer = np.zeros((members, members, part_bytes), np.uint8)  # receiver, sender
        self._partly_known: dict[int, Intervals] = {}
        self._known: list[Intervals] = [
            intervals.NONE
        ] * members  # of a part of each sender; the same for all receivers

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        members = len(self._known)
        self._buffer[:, member, :] = np.frombuffer(payload, np.uint8).reshape(members, self._part_bytes)
        if len(known) == 2 and known[0] == 0 and known[1] == len(payload):
            self._known[member] = (0, self._part_bytes)
        elif known:
            self._partly_known[member] = known

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        known = self._known
        if self._partly_known:
            first = member * self._part_bytes
            known = list(known)
            for sender, its_known in self._partly_known.items():
                known[sender] = intervals.part(its_known, first, first + self._part_bytes)
        all_known = intervals.concatenation(known, self._part_bytes)
        return (all_known, self._buffer[member].reshape(-1).data) if all_known else _NOTHING


class _FromRoot:
    """Broadcast, scatter."""

    def __init__(self, part_bytes: int, *, scattered: bool) -> None:
        self._part_bytes = part_bytes
        self._scattered = scattered
        self._known: Intervals = intervals.NONE
        self._payload: Buffer | None = None

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        if known:
            self._known, self._payload = known, payload

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if self._payload is None or not self._scattered:
            return self._known, self._payload
        first = member * self._part_bytes
        known = intervals.part(self._known, first, first + self._part_bytes)
        return (known, memoryview(self._payload)[first : first + self._part_bytes]) if known else _NOTHING
