"""Where the histories of the ranks diverge.

In: flight recorders of some ranks, and the coordinator's history of calls. Out: the last collective that all members of
a process group called alike and the calls after it; and the first calls that were matched although they do not belong
together (shifted_calls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.communicators import Communicator
from coordinator.hangs.flight_recorder import Entry, RecordedGroup, Recorder
from coordinator.hangs.rank_groups import Member
from coordinator.hangs.shifted_calls import Shift, find_shift
from coordinator.state import State
from maya.hangs.python_stacks import Frame, users_frame, users_frames
from rank_runtime.messages import Call

_MOST_CALLERS = 3
_MOST_CALLS = 4


def place_of(frame: Frame | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {"file": frame.file, "line": frame.line, "function": frame.function, "source": frame.source}


def divergence_of(together: Sequence[list[Member]], shift: dict[str, Any] | None) -> dict[str, Any] | None:
    """Where the flight recorders diverge: the last collective of a process group that all ranks called alike, and the
    first one that they did not. Matching calls from different lines are legal, so lines count only where a `shift`
    begins."""
    shifted = {_line(shift["odd_at"]), _line(shift["others_at"])} - {None} if shift else set()
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
            different |= len(shifted) == 2 and {_line(place_of(call.line)) for _, call in calls if call} == shifted
            if different or any(call and not call.completed for _, call in calls):
                return _first_difference(concerned[0][0][0].recorder.groups[name], last, calls)
            last = calls[0][1]
    return None


def _line(place: dict[str, Any] | None) -> object:
    return place and (place["file"], place["line"])


def _collectives(recorder: Recorder) -> dict[str, dict[int, Entry]]:
    """Collectives by group and number. Torch gives the parts of a coalesced collective one number: the first counts."""
    found: dict[str, dict[int, Entry]] = {}
    for entry in recorder.entries:
        if not entry.is_p2p:
            found.setdefault(entry.group, {}).setdefault(entry.number, entry)
    return found


def _first_difference(
    group: RecordedGroup, last: Entry | None, calls: Sequence[tuple[list[Member], Entry | None]]
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
        "called_at": place_of(entry.line),
    }


# ---- shifted calls ----


def shift_of(state: State, together: Sequence[list[Member]]) -> dict[str, Any] | None:
    """The first calls of a communicator that do not belong together; communicators that ranks wait on come first."""
    waited_on = {member.wait.communicator for group in together for member in group if member.wait is not None}
    communicators = sorted(state.each_communicator(), key=lambda each: (each.number not in waited_on, each.number))
    for communicator in communicators:
        shift = find_shift(communicator.call_runs())
        if shift is not None:
            return _describe(shift, communicator, state, together)
    return None


def _describe(
    shift: Shift, communicator: Communicator, state: State, together: Sequence[list[Member]]
) -> dict[str, Any]:
    members = communicator.members
    recorders = [group[0].recorder for group in together]
    labels = [group.label for recorder in recorders for group in recorder.of_ranks(members)]
    calls: list[dict[str, Any]] = []
    for call in shift.calls:
        place = _place_of_site(state, call.site)
        name = Call(call.call).name.lower()
        if calls and calls[-1]["called_at"] == place and calls[-1]["name"] == name:
            calls[-1]["times"] += 1  # the parts of a coalesced collective, or a loop
            continue
        calls.append({"name": name, "called_at": place, "times": 1, "callers": _callers(state, call.site)})
    return {
        "difference": shift.difference.value,
        "group": labels[0] if labels else f"communicator {communicator.number}",
        "number": shift.sequence + 1,
        "odd": sorted(members[member] for member in shift.odd),
        "others": sorted(members[member] for member in shift.others),
        "calls": calls[:_MOST_CALLS],
        "more_calls": max(0, len(calls) - _MOST_CALLS),
        "odd_at": _place_of_site(state, shift.odd_site),
        "others_at": _place_of_site(state, shift.others_site),
    }


def _frames(state: State, site: int) -> tuple[Frame, ...]:
    return tuple(Frame(*frame) for frame in state.sites.frames(site))


def _place_of_site(state: State, site: int) -> dict[str, Any] | None:
    return place_of(users_frame(_frames(state, site)))


def _callers(state: State, site: int) -> list[dict[str, Any] | None]:
    return [place_of(frame) for frame in users_frames(_frames(state, site))[:_MOST_CALLERS]]
