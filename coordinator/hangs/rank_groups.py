"""Groups the ranks of a hang by what they do.

In: a finding of the watcher, the observed ranks, and the coordinator's state. Out: groups of members, the odd ones
first. Ranks that wait in the same call, made from the same lines of the program, are one group, wherever they stand by
now: CUDA is asynchronous, so a rank may be some lines behind its call. Ranks that wait in no call are grouped by where
they stand.

A group is odd if others wait for its ranks and these make no call themselves, or if it posted another call than most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.call_sites import UNKNOWN
from coordinator.communicators import PendingWait
from coordinator.descriptions import call_text
from coordinator.hangs.flight_recorder import Entry, RecordedGroup, Recorder
from coordinator.hangs.processes import Doing
from coordinator.state import State
from maya.hangs.python_stacks import Frame, Stacks, users_frames
from rank_runtime.messages import Call, Failed, RequestFailed


@dataclass(frozen=True)
class Finding:
    """A hang or pause that the watcher found."""

    kind: str
    stuck: set[int]
    waits: list[PendingWait]
    seconds: float
    failure: Failed | RequestFailed | None = None


@dataclass(frozen=True)
class Rank:
    """The observed state of a rank."""

    rank: int
    doing: Doing
    status: int | None  # exit status
    stacks: Stacks
    in_store: bool = False  # it waits for an answer from the TCPStore
    lock: str = ""  # the file that it waits to lock, and who holds the lock
    store_key: str = ""  # that it waits for, as far as known
    node: str = ""  # its machine; empty: this one


@dataclass
class Member:
    """A rank, with the intermediate results of building a report."""

    rank: Rank
    wait: PendingWait | None
    variant: str = ""  # its post, in a mismatch
    communicator: tuple[object, ...] = ()  # equal for communicators of the same shape, as those of a mesh's rows
    is_draining: bool = False  # its program has ended
    is_awaited: bool = False  # other ranks wait for it
    is_refused: bool = False  # its communicator init has failed
    call_stack: tuple[Frame, ...] = ()  # of its call; empty: unknown
    recorder: Recorder = field(default_factory=Recorder)
    entry: Entry | None = None

    @property
    def group(self) -> RecordedGroup | None:
        return self.recorder.groups.get(self.entry.group) if self.entry else None

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The stack of the main thread. After the program has ended only Maya's own frames are left: no stack."""
        return () if self.is_draining else self.rank.stacks.main

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The user's frames of the call that the rank is in, innermost first, or of where it stands."""
        return users_frames(self.call_stack) or users_frames(self.stack)

    @property
    def waits_in_call(self) -> bool:
        return self.wait is not None and self.wait.post is not None


def members_of(finding: Finding, ranks: Mapping[int, Rank], state: State) -> dict[int, Member]:
    """The ranks with their calls."""
    waits_of: dict[int, list[PendingWait]] = {}
    for wait in finding.waits:
        for rank in wait.waiting:
            waits_of.setdefault(rank, []).append(wait)
    variants, sites = _variants(state, finding.failure) if finding.kind == "mismatch" else ({}, {})
    members = {}
    for rank, observed in ranks.items():
        wait_ = _first(waits_of.get(rank, []), finding.stuck, ranks)
        member = members[rank] = Member(observed, wait_, variants.get(rank, ""))
        member.communicator = _shape(state, member.wait)
        member.is_draining = state.is_draining(rank)
        member.is_refused = isinstance(finding.failure, RequestFailed) and rank in finding.stuck
        site = sites.get(rank, UNKNOWN)
        if site == UNKNOWN and wait_ is not None and not member.variant:
            site = wait_.site_of(rank)
        member.call_stack = tuple(Frame(*frame) for frame in state.sites.frames(site))
    for member in members.values():
        for rank in member.wait.missing if member.wait is not None and member.wait.communicator else ():
            if rank in members:
                members[rank].is_awaited = True
    return members


def _variants(state: State, failure: Failed | RequestFailed | None) -> tuple[dict[int, str], dict[int, int]]:
    """The post of each rank in a collective, send or recv that does not match, and the call sites of collectives."""
    sends_and_recvs = re.findall(r"rank (\d+) posted ((?:send|receive) [^;]+)", failure.text if failure else "")
    posted = {int(rank): text for rank, text in sends_and_recvs}
    sites = {}
    for communicator, collective in state.disagreements():
        for signature, group in collective.variants.items():
            for member in group:
                rank = communicator.members[member]
                posted[rank] = call_text(*signature, communicator.members)
                sites[rank] = collective.site_of(member)
    return posted, sites


def _first(waits: Sequence[PendingWait], stuck: set[int], ranks: Mapping[int, Rank]) -> PendingWait | None:
    """The wait to report: preferably one that can never end."""
    for wait in waits:
        missing = wait.missing if wait.communicator else ()
        if any(rank in stuck or ranks[rank].status is not None for rank in missing if rank in ranks):
            return wait
    return waits[0] if waits else None


def _shape(state: State, wait: PendingWait | None) -> tuple[object, ...]:
    communicator = state.communicator(wait.communicator) if wait is not None else None
    if communicator is None:
        return ()
    first = communicator.members[0]
    return (communicator.instance, tuple(rank - first for rank in communicator.members))


# ---- groups ----


def _key(member: Member) -> tuple[object, ...]:
    """The key that is equal for ranks of one group."""
    rank, wait = member.rank, member.wait
    places: object = tuple((frame.file, frame.line) for frame in member.callers)
    if member.is_draining and not member.call_stack:
        places = "ended"
    if rank.status is not None:
        return ("ended", rank.status, member.is_awaited)
    if member.variant:
        return ("posted", member.variant, places)
    if wait is None or wait.post is None:
        return (rank.doing.value, wait.what if wait else "", rank.lock, places)
    post = wait.post
    peer = wait.missing[0] - rank.rank if post.call >= Call.SEND and wait.missing else 0
    drains = member.is_draining
    return ("waits", post.call, post.count, post.data_type, member.communicator, wait.sequence, peer, drains, places)


def group_members(members: Mapping[int, Member]) -> tuple[list[list[Member]], set[int]]:
    """The groups in the order of the report, and the ranks of the odd ones. After the odd groups come waiting ones,
    among them those first that wait for a rank that does not wait itself; then larger groups."""
    groups: dict[tuple[object, ...], list[Member]] = {}
    for member in members.values():
        groups.setdefault(_key(member), []).append(member)
    together = list(groups.values())
    odd = _odd(together)

    def order(group: list[Member]) -> tuple[bool, bool, bool, bool, int]:
        first = group[0]
        if first.rank.rank in odd:
            return (False, False, False, False, len(group))
        missing = first.wait.missing if first.wait is not None and first.wait.communicator else ()
        follows = all(rank in members and members[rank].wait is not None for rank in missing)
        return (
            True,
            first.rank.status is not None,
            first.wait is None and not first.variant,
            follows,
            -len(group),
        )

    return sorted(together, key=order), odd


def _odd(groups: Sequence[list[Member]]) -> set[int]:
    """The ranks that differ from the others, in a way that explains the hang."""
    posted = [group for group in groups if group[0].variant]
    if len(posted) > 1:
        most = max(posted, key=lambda group: (len(group), -group[0].rank.rank))
        found = [group for group in posted if group is not most]
    else:
        late = [group for group in groups if any(member.is_awaited for member in group)]
        largest = max(map(len, groups), default=0)
        found = [group for group in late if not group[0].waits_in_call] or [
            group for group in late if len(group) < largest
        ]
        if not late:  # Gloo and stores do not say for which ranks they wait
            found = [group for group in groups if len(group) < largest]
    odd = {member.rank.rank for group in found for member in group}
    return odd if len(odd) < sum(map(len, groups)) else set()
