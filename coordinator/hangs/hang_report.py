"""The report of a hang, or of what may be one: ranks grouped by what they do, where they diverged, hints.

In: what was found, what the ranks tell, and flight recorders of those that are asked for them. Out: a dictionary of
plain values, written as hang.json or no_progress.json; text.py makes a text of it.

    kind          deadlock, partial deadlock, mismatch, no progress
    seconds       since a rank last did anything that can be seen here
    problem       of a mismatch: what does not match
    ranks         how many there are, and which of them are stuck: those that can never go on, for certain
    groups        ranks that do the same: state, what they do, the call they wait for, who is missing, which of those
                  have called it and queued it behind something else, whether their programs have ended, lines, stack
    divergence    the last collective that all members of the group took part in, and what followed
    hints         well-known mistakes that look like this
    recorders     how the names of the flight recorders' files begin
    resolved      of no_progress.json: whether the ranks went on; `seconds` is the whole pause then
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.arithmetic import ITEM_BYTES
from coordinator.communicators import PendingWait
from coordinator.descriptions import DATA_TYPES, call_text
from coordinator.hangs.flight_recorder import Entry, RecordedGroup, Recorder
from coordinator.hangs.hints import hints_for
from coordinator.hangs.processes import Doing
from coordinator.hangs.user_source import backward_before
from coordinator.state import State
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Frame, Stacks, users_frame
from maya.util.ranks import ranks_text
from rank_runtime.messages import Call, Failed, RequestFailed

VERSION = 1

Recorders = Callable[[list[int]], dict[int, Recorder]]

_NAMES = {  # torch's, as they begin in flight recorders
    Call.ALL_REDUCE: ("all_reduce", "allreduce"),
    Call.REDUCE: ("reduce", "_reduce"),
    Call.REDUCE_SCATTER: ("reduce_scatter", "_reduce_scatter"),
    Call.BROADCAST: ("broadcast", "_broadcast"),
    Call.ALL_GATHER: ("all_gather", "_all_gather", "allgather"),
    Call.ALL_TO_ALL: ("all_to_all", "alltoall"),
    Call.GATHER: ("gather",),
    Call.SCATTER: ("scatter",),
    Call.SEND: ("send",),
    Call.RECEIVE: ("recv",),
}
_MADE_OF_MESSAGES = ("all_to_all", "alltoall", "gather", "scatter")


@dataclass(frozen=True)
class Finding:
    """What was found."""

    kind: str
    stuck: set[int]
    waits: list[PendingWait]
    seconds: float
    failure: Failed | RequestFailed | None = None


@dataclass(frozen=True)
class Rank:
    """What a rank does."""

    rank: int
    doing: Doing
    status: int | None  # how it ended
    stacks: Stacks
    in_store: bool = False  # it waits for an answer of the TCPStore


@dataclass
class _Member:
    """A rank in the making of the report."""

    rank: Rank
    wait: PendingWait | None
    variant: str = ""  # of a mismatch: what it posted
    communicator: tuple[object, ...] = ()  # what the ones have in common that the ranks of a mesh's rows have
    is_draining: bool = False  # its program has ended
    is_refused: bool = False  # as a member of a new communicator
    recorder: Recorder = field(default_factory=Recorder)
    entry: Entry | None = None

    @property
    def group(self) -> RecordedGroup | None:
        return self.recorder.groups.get(self.entry.group) if self.entry else None


def make_report(
    finding: Finding,
    ranks: Mapping[int, Rank],
    state: State,
    recorders: Recorders,
    write_recorders: Callable[[], str],
) -> dict[str, Any]:
    """Everything that is known about a hang."""
    waits_of: dict[int, list[PendingWait]] = {}
    for wait in finding.waits:
        for rank in wait.waiting:
            waits_of.setdefault(rank, []).append(wait)
    variants = _variants(state, finding.failure) if finding.kind == "mismatch" else {}
    members = {
        rank: _Member(told, _first(waits_of.get(rank, []), finding.stuck, ranks), variants.get(rank, ""))
        for rank, told in ranks.items()
    }
    for rank, member in members.items():
        member.communicator = _alike(state, member.wait)
        member.is_draining = state.is_draining(rank)
        member.is_refused = isinstance(finding.failure, RequestFailed) and rank in finding.stuck
    together = _together(members)
    found = recorders([group[0].rank.rank for group in together])
    for group in together:
        for member in group:
            member.recorder = found.get(member.rank.rank, Recorder())
            member.entry = _entry_of(member)
    groups = [_describe(group, finding, members) for group in together]
    report: dict[str, Any] = {
        "version": VERSION,
        "kind": finding.kind,
        "seconds": round(finding.seconds, 1),
        "problem": finding.failure.text if finding.failure else None,
        "ranks": {"all": len(ranks), "stuck": sorted(finding.stuck)},
        "groups": groups,
        "divergence": _divergence(together),
    }
    report["hints"] = hints_for(report)
    report["recorders"] = write_recorders()
    return report


# ---- groups ----


def _variants(state: State, failure: Failed | RequestFailed | None) -> dict[int, str]:
    """What each rank posted of the collective or message that does not match."""
    messages = re.findall(r"rank (\d+) posted ((?:send|receive) [^;]+)", failure.text if failure else "")
    posted = {int(rank): text for rank, text in messages}
    for communicator, collective in state.disagreements():
        for signature, group in collective.variants.items():
            for member in group:
                posted[communicator.members[member]] = call_text(*signature, communicator.members)
    return posted


def _first(waits: Sequence[PendingWait], stuck: set[int], ranks: Mapping[int, Rank]) -> PendingWait | None:
    """The wait to name if there are several: one that can never end."""
    for wait in waits:
        missing = wait.missing if wait.communicator else ()
        if any(rank in stuck or ranks[rank].status is not None for rank in missing if rank in ranks):
            return wait
    return waits[0] if waits else None


def _alike(state: State, wait: PendingWait | None) -> tuple[object, ...]:
    communicator = state.communicator(wait.communicator) if wait is not None else None
    if communicator is None:
        return ()
    first = communicator.members[0]
    return (communicator.instance, tuple(rank - first for rank in communicator.members))


def _key(member: _Member) -> tuple[object, ...]:
    """What ranks have in common that are reported together."""
    rank, wait = member.rank, member.wait
    frame = users_frame(_program_stack(member))
    place = frame.place if frame else "ended" if member.is_draining else ""
    if rank.status is not None:
        return ("ended", rank.status)
    if member.variant:
        return ("posted", member.variant, place)
    if wait is None or wait.post is None:
        return (rank.doing.value, wait.what if wait else "", place)
    post = wait.post
    peer = wait.missing[0] - rank.rank if post.call >= Call.SEND else 0
    return ("waits", post.call, post.count, post.data_type, member.communicator, wait.sequence, peer, place)


def _together(members: Mapping[int, _Member]) -> list[list[_Member]]:
    """Groups: those that wait first, and of them those that wait for somebody who does not; larger ones first."""
    groups: dict[tuple[object, ...], list[_Member]] = {}
    for member in members.values():
        groups.setdefault(_key(member), []).append(member)

    def order(group: list[_Member]) -> tuple[bool, bool, bool, int]:
        first = group[0]
        missing = first.wait.missing if first.wait is not None and first.wait.communicator else ()
        follows = all(rank in members and members[rank].wait is not None for rank in missing)
        return (first.rank.status is not None, first.wait is None and not first.variant, follows, -len(group))

    return sorted(groups.values(), key=order)


def _program_stack(member: _Member) -> tuple[Frame, ...]:
    """The stack of the main thread; of a program that has ended, only ours is left."""
    return () if member.is_draining else member.rank.stacks.main


def _describe(group: list[_Member], finding: Finding, members: Mapping[int, _Member]) -> dict[str, Any]:
    first = group[0]
    ranks = sorted(member.rank.rank for member in group)
    main = _program_stack(first)
    stands = users_frame(main)
    called = first.entry.line if first.entry else stands
    if first.entry and first.entry.is_backward and stands:
        called = backward_before(stands)
    return {
        "ranks": ranks,
        "state": _state(first),
        "stuck": first.rank.rank in finding.stuck,
        "doing": _doing(group),
        "call": _call(group) if first.wait is not None else None,
        "missing": _missing(group),
        "queued": _queued(group, members),
        "draining": first.is_draining,
        "function": _outermost_of_torch(main) if main else None,
        "called_at": _place(called),
        "in_backward": bool(first.entry and first.entry.is_backward),
        "stands_at": _place(stands),
        "stack": [_place(frame) for frame in main],
        "other_stacks": [[_place(frame) for frame in thread.frames] for thread in first.rank.stacks.others],
    }


def _state(member: _Member) -> str:
    if member.rank.status is not None:
        return "ended"
    if member.variant:
        return "posted"
    return "waits" if member.wait is not None else member.rank.doing.value


def _place(frame: Frame | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {"file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source}


def _missing(group: list[_Member]) -> list[int]:
    """Ranks that the group waits for."""
    missing: set[int] = set()
    for member in group:
        if member.wait is not None and member.wait.communicator:
            missing.update(member.wait.missing)
    return sorted(missing)


def _queued(group: list[_Member], members: Mapping[int, _Member]) -> list[int]:
    """Of those that the group waits for, the ranks that have called it, but whose streams have not come to it."""
    wanted = group[0].entry
    if wanted is None or wanted.is_message:
        return []
    called = (wanted.group, wanted.number, wanted.call)
    return [
        rank
        for rank in _missing(group)
        if rank in members
        and any(
            (entry.group, entry.number, entry.call) == called and not entry.completed and not entry.is_message
            for entry in members[rank].recorder.entries
        )
    ]


def _call(group: list[_Member]) -> dict[str, Any]:
    member = group[0]
    wait, entry = member.wait, member.entry
    assert wait is not None
    post, named = wait.post, member.group
    if post is None:
        return {"name": wait.what, "group": None, "members": 0, "number": wait.sequence}
    return {
        "name": entry.call if entry else Call(post.call).name.lower(),
        "number": entry.number if entry else post.sequence + 1,
        "group": named.label if named else f"communicator {wait.communicator}",
        "members": len(named.ranks if named else wait.members),
        "groups": len({each.wait.communicator for each in group if each.wait is not None}),
        "count": post.count,
        "data_type": DATA_TYPES[post.data_type],
        "bytes": post.count * ITEM_BYTES[post.data_type],
        "peer": wait.missing[0] if post.call >= Call.SEND and wait.missing else None,
    }


def _doing(group: list[_Member]) -> str:
    """What the ranks of a group do, in words."""
    member = group[0]
    rank, wait = member.rank, member.wait
    if rank.status is not None:
        return f"ended with exit code {rank.status}" if rank.status >= 0 else f"ended by signal {-rank.status}"
    if member.variant:
        return f"posted {member.variant}"
    if member.is_refused:
        main = _program_stack(member)
        return f"making a communicator in {_outermost_of_torch(main)}" if main else "making a communicator"
    if wait is not None and wait.post is not None:
        call = _call(group)
        name = f"{call['name']} #{call['number']}" if call["peer"] is None else _message(group, call)
        sizes = f"{call['count']} {call['data_type']}, {call['bytes']:,} bytes"
        among = f"{call['members']} ranks" if call["groups"] == 1 else f"{call['groups']} groups of {call['members']}"
        ended = ", queued when the rank ended" if member.is_draining else ""
        return f"in {name} of {call['group']} ({among}), {sizes}{ended}"
    if wait is not None:
        if wait.communicator:
            return f"in {wait.what}"
        verb = "has" if len(wait.missing) == 1 else "have"
        where = f"in {_outermost_of_torch(rank.stacks.main)}, " if rank.stacks.main else ""
        return f"{where}for {ranks_text(wait.missing, 'member')} of {wait.what}, who {verb} not come"
    if not rank.stacks.known:
        return {Doing.RUNS: "running"}.get(rank.doing, "standing still") + ", and does not answer"
    return _without_call(rank)


def _message(group: list[_Member], call: dict[str, Any]) -> str:
    word = "send to" if call["name"].startswith("send") else "receive from"
    if len(group) == 1:
        return f"{word} rank {call['peer']}"
    difference = call["peer"] - group[0].rank.rank
    return f"{word} the rank {abs(difference)} {'above' if difference > 0 else 'below'}"


def _without_call(rank: Rank) -> str:
    kind = python_stacks.kind_of_wait(rank.stacks.main)
    main = [frame for frame in rank.stacks.main if not frame.is_ours]
    if kind is python_stacks.StackWait.SLEEP or (rank.doing is Doing.SLEEPS and not main):
        return "sleeping"
    if rank.doing is Doing.RUNS:
        return "running"
    if rank.stacks.awaited_streams:
        return "waiting for the device"
    frame = next((each for each in main if "/torch/distributed/" in each.file and each.function != "wrapper"), None)
    if frame is not None and kind is python_stacks.StackWait.GROUP:
        return f"waiting for other ranks in {_outermost_of_torch(main)}"
    if rank.in_store:
        return f"waiting for a key of the store in {main[0].function}" if main else "waiting for a key of the store"
    if not main:
        return "outside of Python"
    return f"{'polling' if rank.doing is Doing.POLLS else 'waiting'} in {main[0].function} ({main[0].place})"


def _outermost_of_torch(main: Sequence[Frame]) -> str:
    """The function of torch that the program called."""
    name = ""
    for frame in main:
        if not frame.is_torch:
            break
        if frame.function not in ("wrapper", "_fn", "decorate_context"):
            name = frame.function
    return name or main[0].function


# ---- flight recorders ----


def _entry_of(member: _Member) -> Entry | None:
    """The call that a rank waits for, or that does not match, in its flight recorder."""
    wait, active = member.wait, [entry for entry in member.recorder.entries if not entry.completed]
    if member.variant.startswith(("send", "receive")):
        return _message_entry(member)
    if wait is None or wait.post is None:
        return active[0] if member.variant and active else None
    is_message = wait.post.call >= Call.SEND
    if is_message:
        both = {member.rank.rank, *wait.missing}
        groups = {group.name for group in member.recorder.groups.values() if both <= set(group.ranks)}
    else:
        groups = {group.name for group in member.recorder.of_ranks(wait.members)}
    begins = _NAMES[Call(wait.post.call)]
    candidates = [entry for entry in active if entry.group in groups and entry.is_message == is_message]
    if len(active) == len(member.recorder.entries) and not is_message:  # torch has no watchdog that completes them
        candidates = candidates[wait.post.sequence :]
    return next((entry for entry in candidates if entry.call.startswith(begins)), None)


def _message_entry(member: _Member) -> Entry | None:
    """The call of a message that does not match. Small ones are sent at once, so that its sender may have gone on."""
    begins = (*_NAMES[Call.SEND if member.variant.startswith("send") else Call.RECEIVE], *_MADE_OF_MESSAGES)
    found = [entry for entry in member.recorder.entries if entry.call.startswith(begins)]
    return next((entry for entry in found if not entry.completed), found[-1] if found else None)


def _divergence(together: list[list[_Member]]) -> dict[str, Any] | None:
    """Where the ranks that were asked went different ways: of one group's collectives the last that all of them called
    alike, and the first that they did not, or not all of them."""
    histories = [(group, _collectives(group[0].recorder)) for group in together if group[0].recorder.entries]
    waiting = next((group[0] for group in together if group[0].entry and not group[0].entry.is_message), None)
    names = [waiting.entry.group] if waiting and waiting.entry else []
    names += sorted({name for _, history in histories for name in history} - set(names))
    for name in names:
        concerned = [(group, history.get(name, {})) for group, history in histories if name in group[0].recorder.groups]
        numbers = sorted({number for _, history in concerned for number in history})
        last: Entry | None = None
        for number in numbers:
            calls = [(group, history.get(number)) for group, history in concerned]
            different = len({call and (call.call, call.sizes, call.types) for _, call in calls}) > 1
            if different or any(call and not call.completed for _, call in calls):
                return _first_difference(concerned[0][0][0].recorder.groups[name], last, calls)
            last = calls[0][1]
    return None


def _collectives(recorder: Recorder) -> dict[str, dict[int, Entry]]:
    """Of each group, by number; of several with one number, which are one for torch, the first."""
    found: dict[str, dict[int, Entry]] = {}
    for entry in recorder.entries:
        if not entry.is_message:
            found.setdefault(entry.group, {}).setdefault(entry.number, entry)
    return found


def _first_difference(
    group: RecordedGroup, last: Entry | None, calls: Sequence[tuple[list[_Member], Entry | None]]
) -> dict[str, Any]:
    return {
        "group": group.label,
        "last_in_common": None if last is None else _called(last),
        "then": [
            {
                "ranks": sorted(member.rank.rank for member in members),
                "called": None if call is None else _called(call),
            }
            for members, call in calls
        ],
    }


def _called(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.call,
        "number": entry.number,
        "completed": entry.completed,
        "called_at": _place(entry.line),
    }
