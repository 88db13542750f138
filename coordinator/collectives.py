"""One collective: combines the members' contributions, and computes each member's result.

In: the members' posts, in any order; communicators.py has matched them. Out: for each member the known bytes of its
receive buffer, and their intervals. Ranks and coordinator exchange only known bytes (intervals.py). A contribution to a
reduction is combined with the others on arrival, to save memory (arithmetic.py). An element of the result is known if
every member's is.

Absent members contribute what present ones do. If these contribute different values, those of absent members are
placeholders, and so is the result: a program that reads it may be steered by it. Bytes are not compared, because they
are pickled objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from coordinator import intervals
from coordinator.arithmetic import ITEM_BYTES, Buffer, Reducer
from coordinator.call_history import PastCall, make_sites
from coordinator.call_sites import UNKNOWN
from coordinator.descriptions import call_text
from coordinator.intervals import Intervals
from maya.util.ranks import ranks_text
from rank_runtime.messages import Call, Post

Signature = tuple[int, int, int, int, int]  # call, count, data type, reduction, root: equal on all members

ROOTED = frozenset({Call.REDUCE, Call.BROADCAST, Call.GATHER, Call.SCATTER})
FROM_ROOT = frozenset({Call.BROADCAST, Call.SCATTER})
_TO_ROOT = frozenset({Call.REDUCE, Call.GATHER})
_REDUCING = frozenset({Call.ALL_REDUCE, Call.REDUCE, Call.REDUCE_SCATTER})
_SENDING_TO_ALL = frozenset({Call.REDUCE_SCATTER, Call.ALL_TO_ALL, Call.SCATTER})  # count elements for every member

_NOTHING: tuple[Intervals, Buffer | None] = (intervals.NONE, None)


def signature_of(post: Post) -> Signature:
    return (post.call, post.count, post.data_type, post.reduction, post.peer)


def send_bytes(post: Post, member: int, members: int) -> int:
    """Size of a member's send buffer."""
    if post.call == Call.RECEIVE or (post.call in FROM_ROOT and member != post.peer):
        return 0
    return post.count * ITEM_BYTES[post.data_type] * (members if post.call in _SENDING_TO_ALL else 1)


class PendingCollective:
    """Posts of one sequence number on one communicator."""

    __slots__ = (
        "_first",
        "_members",
        "_parts",
        "_stand_ins",
        "arrival_ns",
        "guessed",
        "missing",
        "post",
        "signature",
        "site",
        "sites",
        "tokens",
        "variants",
    )

    def __init__(self, post: Post, members: int, stand_ins: Mapping[int, Sequence[int]] | None = None) -> None:
        """`stand_ins`: for each present member, the absent members that it stands for; None: all are present."""
        self.post = post  # the first one
        self.signature = signature_of(post)
        self._members = members
        self._stand_ins = stand_ins
        self.tokens: dict[int, int | None] = {}  # by member that has posted; None: it does not wait for the answer
        self.missing = members if stand_ins is None else len(stand_ins)
        self.arrival_ns = 0  # when the last member arrived
        self.guessed = False  # some member sent placeholder values
        self.site = post.site
        self.sites: dict[int, list[int]] | None = None  # members by call site, if they differ
        self.variants: dict[Signature, list[int]] = {}  # if the posts disagree: members by signature
        self._parts: _Parts | None = None
        self._first: Buffer | None = None  # a contribution that others are compared with

    def add(self, member: int, post: Post, payload: Buffer | None) -> None:
        """Add a member's post, which agrees with the others."""
        self.tokens[member] = post.token
        if post.site != self.site or self.sites is not None:
            self._note_site(member, post.site)
        self.missing -= 1
        if post.arrival_ns > self.arrival_ns:
            self.arrival_ns = post.arrival_ns
        if payload is not None and post.known:
            self.guessed |= post.guessed
            if self._parts is None:
                self._parts = _parts_for(post, self._members)
            self._parts.add(member, post.known, payload)
            if self._stand_ins is not None and post.call not in FROM_ROOT:
                for absent in self._stand_ins[member]:
                    self._parts.add(absent, post.known, payload)
                self._compare(post, payload)
        elif post.call in _REDUCING:
            self._parts = _NothingKnown()  # one unknown contribution makes the result unknown

    def _note_site(self, member: int, site: int) -> None:
        if self.sites is None:
            self.sites = {self.site: [other for other in self._posted() if other != member]}
        self.sites.setdefault(site, []).append(member)

    def _posted(self) -> list[int]:
        return [
            *self.tokens,
            *(member for group in self.variants.values() for member in group if member not in self.tokens),
        ]

    def past_call(self, sequence: int) -> PastCall:
        """The collective for the history of calls. If it is not complete, only the members that have posted count."""
        sites = self.sites
        if sites is None and self.missing:
            sites = {self.site: self._posted()}
        is_complete = not self.missing and not self.variants
        return PastCall(sequence, self.post.call, self.post.count, make_sites(self.site, sites), is_complete)

    def site_of(self, member: int) -> int:
        """The call site of a member that has posted."""
        if self.sites is None:
            return self.site
        return next((site for site, members in self.sites.items() if member in members), UNKNOWN)

    def _compare(self, post: Post, payload: Buffer) -> None:
        """Compare a contribution with the first one, if absent members contribute the same."""
        if ITEM_BYTES[post.data_type] == 1 or self._members == len(self._stand_ins or ()):
            return
        if self._first is None:
            self._first = payload
        elif not self.guessed and bytes(self._first) != bytes(payload):
            self.guessed = True
            self._first = b""

    def add_absent(self, member: int, post: Post, payload: Buffer) -> None:
        """Add the contribution of an absent root, from its sibling's post."""
        if post.known and signature_of(post) == self.signature:
            self.guessed |= post.guessed
            self._parts = _parts_for(post, self._members)
            self._parts.add(member, post.known, payload)

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        """The known intervals of a member's receive buffer, and their bytes; no payload if nothing is known."""
        if self._parts is None or (self.post.call in _TO_ROOT and member != self.post.peer):
            return _NOTHING
        return self._parts.result(member)

    @property
    def is_same_for_all(self) -> bool:
        """Whether every member receives the same bytes."""
        return self._parts is None or self.post.call in (Call.ALL_REDUCE, Call.ALL_GATHER, Call.BROADCAST)

    def forget(self, member: int) -> None:
        """A member no longer waits for the answer; its contribution stays."""
        self.tokens[member] = None

    def withdraw(self, member: int) -> None:
        """A member takes back its post, and will not post again: the collective will never be complete."""
        del self.tokens[member]
        self.missing += 1

    # ---- posts that do not agree ----

    def disagree(self, member: int, post: Post) -> None:
        """Add a post that does not agree with the others: the collective can never complete."""
        signature = signature_of(post)
        if not self.variants:
            self.variants[self.signature] = list(self.tokens)
            self._parts = None
        self.variants.setdefault(signature, []).append(member)
        if post.site != self.site or self.sites is not None:
            self._note_site(member, post.site)

    def disagreement(self, members: Sequence[int]) -> str:
        return "; ".join(
            f"{ranks_text(members[member] for member in group)} posted {call_text(*signature, members)}"
            for signature, group in self.variants.items()
        )


class _Parts(Protocol):
    """The contributions to a collective that have arrived."""

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
    return _FromRoot(part_bytes, members if post.call == Call.SCATTER else 0)


class _NothingKnown:
    """A reduction with an unknown contribution."""

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
        self._size = count * self._item_bytes
        self._part_bytes = post.count * self._item_bytes if scattered else 0
        self._known: Intervals = (0, self._size)
        self._reducer: Reducer | None = Reducer(members, count, post.data_type, post.reduction)
        self._total: memoryview | None = None
        self._result: Buffer | None = None  # the known bytes of the total

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        if self._reducer is None:
            return
        if len(payload) != self._size:
            common = intervals.intersection(self._known, known)
            self._known = intervals.whole_elements(common, self._item_bytes)
        if not self._known:
            self._reducer = None  # no element of the result can be known any more
            return
        self._reducer.add(member, intervals.unpacked(known, payload, self._size))

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if self._reducer is None:
            return _NOTHING
        if self._total is None:
            self._total = memoryview(self._reducer.result())
        if self._part_bytes == 0:
            if self._result is None:
                self._result = intervals.packed(self._known, self._total)
            return self._known, self._result
        return _part_of(self._known, self._total, member, self._part_bytes)


class _Gathered:
    """All-gather, gather."""

    def __init__(self, members: int, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._known: list[Intervals] = [intervals.NONE] * members
        self._payloads: list[Buffer] = [b""] * members
        self._result: tuple[Intervals, Buffer | None] | None = None

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        self._known[member] = known
        self._payloads[member] = payload

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if self._result is None:
            known = intervals.concatenation(self._known, self._part_bytes)
            self._result = known, b"".join(self._payloads)
        return self._result


class _Exchanged:
    """All-to-all."""

    def __init__(self, members: int, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._buffer = np.zeros((members, members, part_bytes), np.uint8)  # receiver, sender
        self._partly_known: dict[int, Intervals] = {}
        # For each sender, the known intervals of a part; the same for all receivers.
        self._known: list[Intervals] = [intervals.NONE] * members

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        members = len(self._known)
        size = members * self._part_bytes
        buffer = intervals.unpacked(known, payload, size)
        self._buffer[:, member, :] = np.frombuffer(buffer, np.uint8).reshape(members, self._part_bytes)
        if len(payload) == size:
            self._known[member] = (0, self._part_bytes)
        else:
            self._partly_known[member] = known

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        known = self._known
        if self._partly_known:
            first = member * self._part_bytes
            known = list(known)
            for sender, its_known in self._partly_known.items():
                known[sender] = intervals.part(its_known, first, first + self._part_bytes)
        all_known = intervals.concatenation(known, self._part_bytes)
        if not all_known:
            return _NOTHING
        return all_known, intervals.packed(all_known, self._buffer[member].reshape(-1).data)


class _FromRoot:
    """Broadcast, scatter."""

    def __init__(self, part_bytes: int, scattered_to: int) -> None:
        self._part_bytes = part_bytes
        self._scattered_to = scattered_to  # number of members; 0: every member gets the whole buffer
        self._known: Intervals = intervals.NONE
        self._payload: Buffer = b""

    def add(self, member: int, known: Intervals, payload: Buffer) -> None:
        self._known, self._payload = known, payload
        if self._scattered_to:
            self._payload = intervals.unpacked(known, payload, self._scattered_to * self._part_bytes)

    def result(self, member: int) -> tuple[Intervals, Buffer | None]:
        if not self._scattered_to:
            return self._known, self._payload
        return _part_of(self._known, memoryview(self._payload), member, self._part_bytes)


def _part_of(known: Intervals, buffer: memoryview, member: int, part_bytes: int) -> tuple[Intervals, Buffer | None]:
    """A member's part of a buffer that has one part for each member."""
    first, last = member * part_bytes, (member + 1) * part_bytes
    its_known = intervals.part(known, first, last)
    return (its_known, intervals.packed(its_known, buffer[first:last])) if its_known else _NOTHING
