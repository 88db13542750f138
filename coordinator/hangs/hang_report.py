"""Builds the report of a certain or possible hang: ranks grouped by activity, the point of divergence, hints.

In: a finding of the watcher, the state and stacks of the ranks, and flight recorders of some of them. Out: a dictionary
of plain values, written as hang.json or no_progress.json; maya/hangs/report_text.py prints it.

    kind          deadlock, partial deadlock, mismatch, no progress
    seconds       time since the last visible activity of any rank
    problem       the calls that do not match (mismatch only)
    ranks         the number of ranks, and the stuck ones, which can certainly never go on
    groups        ranks with the same activity: state, activity in words, the awaited call, the missing ranks, those of
                  them that have called it and queued it behind another call, whether their programs have ended, source
                  lines, stack
    divergence    the last collective that all members of the process group called alike, and the calls after it
    hints         well-known mistakes that produce such a report
    recorders     path prefix of the flight recorders' files
    resolved      whether the ranks went on (no_progress.json only); `seconds` is then the length of the whole pause
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

_NAMES = {  # prefixes of torch's names in flight recorders
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
_MADE_OF_P2P = ("all_to_all", "alltoall", "gather", "scatter")


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


@dataclass
class _Member:
    """A rank, with the intermediate results of building the report."""

    rank: Rank
    wait: PendingWait | None
    variant: str = ""  # its post, in a mismatch
    communicator: tuple[object, ...] = ()  # equal for communicators of the same shape, as those of a mesh's rows
    is_draining: bool = False  # its program has ended
    is_refused: bool = False  # its communicator init has failed
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
    """Build the report."""
    waits_of: dict[int, list[PendingWait]] = {}
    for wait in finding.waits:
        for rank in wait.waiting:
            waits_of.setdefault(rank, []).append(wait)
    variants = _variants(state, finding.failure) if finding.kind == "mismatch" else {}
    members = {
        rank: _Member(observed, _first(waits_of.get(rank, []), finding.stuck, ranks), variants.get(rank, ""))
        for rank, observed in ranks.items()
    }
    for rank, member in members.items():
        member.communicator = _shape(state, member.wait)
        member.is_draining = state.is_draining(rank)
        member.is_refused = isinstance(finding.failure, RequestFailed) and rank in finding.stuck
    together = _group_members(members)
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
    report["hints"] = [*hints_for(report), *_hint_about_absent_ranks(state)]
    report["recorders"] = write_recorders()
    return report


def _hint_about_absent_ranks(state: State) -> list[str]:
    if state.absent is None:
        return []
    count = state.absent.world_size - len(state.absent.present)
    return [
        f"{count:,} {'rank is' if count == 1 else 'ranks are'} absent (--represent), and assumed to call what these "
        "ranks wait for. To find a hang, let the ranks that differ be present, or run the job with --represent all."
    ]


# ---- groups ----


def _variants(state: State, failure: Failed | RequestFailed | None) -> dict[int, str]:
    """The post of each rank in a collective, send or recv that does not match."""
    sends_and_recvs = re.findall(r"rank (\d+) posted ((?:send|receive) [^;]+)", failure.text if failure else "")
    posted = {int(rank): text for rank, text in sends_and_recvs}
    for communicator, collective in state.disagreements():
        for signature, group in collective.variants.items():
            for member in group:
                posted[communicator.members[member]] = call_text(*signature, communicator.members)
    return posted


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


def _key(member: _Member) -> tuple[object, ...]:
    """The key that is equal for ranks of one group."""
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


def _group_members(members: Mapping[int, _Member]) -> list[list[_Member]]:
    """Group the ranks. Waiting groups come first, among them those that wait for a rank that does not wait itself; then
    larger groups."""
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
    """The stack of the main thread. After the program has ended only Maya's own frames are left: no stack."""
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
    """The missing ranks that have called the collective, but whose streams have not reached it."""
    awaited = group[0].entry
    if awaited is None or awaited.is_p2p:
        return []
    called = (awaited.group, awaited.number, awaited.call)
    return [
        rank
        for rank in _missing(group)
        if rank in members
        and any(
            (entry.group, entry.number, entry.call) == called and not entry.completed and not entry.is_p2p
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
    """The activity of a group's ranks, in words."""
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
        name = f"{call['name']} #{call['number']}" if call["peer"] is None else _send_or_recv(group, call)
        sizes = f"{call['count']} {call['data_type']}, {call['bytes']:,} bytes"
        among = f"{call['members']} ranks" if call["groups"] == 1 else f"{call['groups']} groups of {call['members']}"
        ended = ", queued when the rank ended" if member.is_draining else ""
        return f"in {name} of {call['group']} ({among}), {sizes}{ended}"
    if wait is not None:
        if wait.communicator:
            return f"in {wait.what}"
        verb = "has" if len(wait.missing) == 1 else "have"
        where = f"in {_outermost_of_torch(rank.stacks.main)}, " if rank.stacks.main else ""
        return f"{where}for {ranks_text(wait.missing, 'member')} of {wait.what}, which {verb} not arrived"
    if not rank.stacks.known:
        return {Doing.RUNS: "running"}.get(rank.doing, "blocked") + ", and does not answer"
    return _without_call(rank)


def _send_or_recv(group: list[_Member], call: dict[str, Any]) -> str:
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
    """The name of the torch function that the program called."""
    name = ""
    for frame in main:
        if not frame.is_torch:
            break
        if frame.function not in ("wrapper", "_fn", "decorate_context"):
            name = frame.function
    return name or main[0].function


# ---- flight recorders ----


def _entry_of(member: _Member) -> Entry | None:
    """The flight recorder's entry of the call that a rank waits for, or that does not match."""
    wait, active = member.wait, [entry for entry in member.recorder.entries if not entry.completed]
    if member.variant.startswith(("send", "receive")):
        return _p2p_entry(member)
    if wait is None or wait.post is None:
        return active[0] if member.variant and active else None
    is_p2p = wait.post.call >= Call.SEND
    if is_p2p:
        both = {member.rank.rank, *wait.missing}
        groups = {group.name for group in member.recorder.groups.values() if both <= set(group.ranks)}
    else:
        groups = {group.name for group in member.recorder.of_ranks(wait.members)}
    begins = _NAMES[Call(wait.post.call)]
    candidates = [entry for entry in active if entry.group in groups and entry.is_p2p == is_p2p]
    if len(active) == len(member.recorder.entries) and not is_p2p:  # no watchdog of torch marks entries as completed
        candidates = candidates[wait.post.sequence :]
    return next((entry for entry in candidates if entry.call.startswith(begins)), None)


def _p2p_entry(member: _Member) -> Entry | None:
    """The entry of a send or recv that does not match. A small send completes at once, so its rank may have gone on."""
    begins = (*_NAMES[Call.SEND if member.variant.startswith("send") else Call.RECEIVE], *_MADE_OF_P2P)
    found = [entry for entry in member.recorder.entries if entry.call.startswith(begins)]
    return next((entry for entry in found if not entry.completed), found[-1] if found else None)


def _divergence(together: list[list[_Member]]) -> dict[str, Any] | None:
    """Where the flight recorders diverge: the last collective of a process group that all ranks called alike, and the
    first one that they did not."""
    histories = [(group, _collectives(group[0].recorder)) for group in together if group[0].recorder.entries]
    waiting = next((group[0] for group in together if group[0].entry and not group[0].entry.is_p2p), None)
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
    """Collectives by group and number. Torch gives the parts of a coalesced collective one number: the first counts."""
    found: dict[str, dict[int, Entry]] = {}
    for entry in recorder.entries:
        if not entry.is_p2p:
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
