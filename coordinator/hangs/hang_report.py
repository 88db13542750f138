"""Builds the report of a certain or possible hang: ranks grouped by activity, the point of divergence, hints.

In: a finding of the watcher, the state and stacks of the ranks, and flight recorders of some of them. Out: a dictionary
of plain values, written as hang.json or no_progress.json; maya/hangs/report_text.py prints it.

    kind          deadlock, partial deadlock, mismatch, no progress
    seconds       time since the last visible activity of any rank
    problem       the calls that do not match (mismatch only)
    ranks         the number of ranks, and the stuck ones, which can certainly never go on
    nodes         the ranks of each machine; empty if there is only one
    odd           ranks that differ from the others in a way that explains the hang
    groups        ranks with the same activity, the odd ones first: state, activity in words, the awaited call, the
                  missing ranks, those of them that have called it and queued it behind another call, whether their
                  programs have ended, source lines, stack
    divergence    the last collective that all members of the process group called alike, and the calls after it
    shift         the first calls that were matched although they do not belong together: a suspicion
    hints         well-known mistakes that produce such a report
    recorders     path prefix of the flight recorders' files
    resolved      whether the ranks went on (no_progress.json only); `seconds` is then the length of the whole pause
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.arithmetic import ITEM_BYTES
from coordinator.descriptions import DATA_TYPES
from coordinator.hangs.divergence import divergence_of, place_of, shift_of
from coordinator.hangs.flight_recorder import Entry, Recorder
from coordinator.hangs.frame_values import RankValues
from coordinator.hangs.hints import hints_for
from coordinator.hangs.processes import Doing
from coordinator.hangs.rank_groups import Finding, Member, Rank, group_members, members_of
from coordinator.hangs.source_names import backward_before
from coordinator.state import State
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Frame, users_frame, users_frames
from maya.util.ranks import ranks_text
from rank_runtime.messages import Call

VERSION = 1
PROVEN = ("deadlock", "partial deadlock", "mismatch")  # kinds of a hang, not of a pause or a request

_MOST_KEYS = 3
_MOST_CALLERS = 3  # frames of the program from the call outwards

Recorders = Callable[[list[int]], dict[int, Recorder]]
Values = Callable[[list[int]], dict[int, RankValues]]

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


def make_report(
    finding: Finding,
    ranks: Mapping[int, Rank],
    state: State,
    recorders: Recorders,
    write_recorders: Callable[[], str],
    values: Values = lambda ranks: {},
) -> dict[str, Any]:
    """Build the report."""
    members = members_of(finding, ranks, state)
    together, odd = group_members(members)
    found = recorders([group[0].rank.rank for group in together])
    for group in together:
        for member in group:
            member.recorder = found.get(member.rank.rank, Recorder())
            member.entry = _entry_of(member)
    # A job that may go on is not suspected of anything.
    shift = shift_of(state, together) if finding.kind in PROVEN else None
    if shift is not None:  # it tells which side is the odd one
        odd = set(shift["odd"]).intersection(members)
        together.sort(key=lambda group: group[0].rank.rank not in odd)
    groups = [_describe(group, finding, members) for group in together]
    report: dict[str, Any] = {
        "version": VERSION,
        "kind": finding.kind,
        "seconds": round(finding.seconds, 1),
        "problem": finding.failure.text if finding.failure else None,
        "ranks": {"all": len(ranks), "stuck": sorted(finding.stuck)},
        "nodes": _nodes(ranks),
        "odd": sorted(odd),
        "groups": groups,
        "divergence": divergence_of(together, shift),
        "shift": shift,
    }
    known = values([group[0].rank.rank for group in together if group[0].rank.status is None])
    report["hints"] = [*hints_for(report, known), *_hint_about_absent_ranks(state)]
    report["recorders"] = write_recorders()
    return report


def _nodes(ranks: Mapping[int, Rank]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, rank in sorted(ranks.items()):
        if rank.node:
            found.setdefault(rank.node, []).append(number)
    return dict(sorted(found.items())) if len(found) > 1 else {}


def _hint_about_absent_ranks(state: State) -> list[str]:
    if state.absent is None:
        return []
    count = state.absent.world_size - len(state.absent.present)
    return [
        f"{count:,} {'rank is' if count == 1 else 'ranks are'} absent (--represent), and assumed to call what these "
        "ranks wait for. To find a hang, let the ranks that differ be present, or run the job with --represent all."
    ]


# ---- groups ----


def _describe(group: list[Member], finding: Finding, members: Mapping[int, Member]) -> dict[str, Any]:
    first = group[0]
    ranks = sorted(member.rank.rank for member in group)
    main = first.stack
    stands, elsewhere = _stands(group)
    callers = users_frames(first.call_stack)
    called = callers[0] if callers else first.entry.line if first.entry else stands
    in_backward = bool(first.entry and first.entry.is_backward and not callers)
    if in_backward and stands:
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
        "lock": first.rank.lock,
        "store_keys": sorted({member.rank.store_key for member in group if member.rank.store_key}),
        "function": _outermost_of_torch(main) if main else None,
        "called_at": place_of(called),
        "callers": [place_of(frame) for frame in (callers or users_frames(main))[1:_MOST_CALLERS]],
        "in_backward": in_backward,
        "stands_at": place_of(stands),
        "elsewhere": elsewhere,
        "stack": [place_of(frame) for frame in main],
        "call_stack": [place_of(frame) for frame in first.call_stack],
        "other_stacks": [[place_of(frame) for frame in thread.frames] for thread in first.rank.stacks.others],
    }


def _stands(group: list[Member]) -> tuple[Frame | None, int]:
    """Where most ranks of a group are now, and how many are elsewhere."""
    places = Counter(users_frame(member.stack) for member in group)
    (most, count), *_ = places.most_common(1)
    return most, len(group) - count


def _state(member: Member) -> str:
    if member.rank.status is not None:
        return "ended"
    if member.variant:
        return "posted"
    return "waits" if member.wait is not None else member.rank.doing.value


def _missing(group: list[Member]) -> list[int]:
    """Ranks that the group waits for."""
    missing: set[int] = set()
    for member in group:
        if member.wait is not None and member.wait.communicator:
            missing.update(member.wait.missing)
    return sorted(missing)


def _queued(group: list[Member], members: Mapping[int, Member]) -> list[int]:
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


def _call(group: list[Member]) -> dict[str, Any]:
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
        "groups": 1 if post.call >= Call.SEND else len({each.wait.members for each in group if each.wait is not None}),
        "count": post.count,
        "data_type": DATA_TYPES[post.data_type],
        "bytes": post.count * ITEM_BYTES[post.data_type],
        "peer": wait.missing[0] if post.call >= Call.SEND and wait.missing else None,
    }


def _doing(group: list[Member]) -> str:
    """The activity of a group's ranks, in words."""
    member = group[0]
    rank, wait = member.rank, member.wait
    if rank.status is not None:
        return f"ended with exit code {rank.status}" if rank.status >= 0 else f"ended by signal {-rank.status}"
    if member.variant:
        return f"posted {member.variant}"
    if member.is_refused:
        main = member.stack
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
    return _without_call(rank) if not rank.store_key else _in_store(group)


def _in_store(group: list[Member]) -> str:
    keys = sorted({member.rank.store_key for member in group if member.rank.store_key})
    shown = ", ".join(map(repr, keys[:_MOST_KEYS])) + (", …" if len(keys) > _MOST_KEYS else "")
    return f"waiting for the key{'s' if len(keys) > 1 else ''} {shown} of the store"


def _send_or_recv(group: list[Member], call: dict[str, Any]) -> str:
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
    if rank.lock:
        return f"waiting for a file lock: {rank.lock}"
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


def _entry_of(member: Member) -> Entry | None:
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


def _p2p_entry(member: Member) -> Entry | None:
    """The entry of a send or recv that does not match. A small send completes at once, so its rank may have gone on."""
    begins = (*_NAMES[Call.SEND if member.variant.startswith("send") else Call.RECEIVE], *_MADE_OF_P2P)
    found = [entry for entry in member.recorder.entries if entry.call.startswith(begins)]
    return next((entry for entry in found if not entry.completed), found[-1] if found else None)
