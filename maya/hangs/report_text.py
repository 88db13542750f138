"""Formats a hang report for the terminal: about one screen, whatever the number of ranks.

In: a report (coordinator/hangs/hang_report.py). Out: lines.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from maya.hangs.python_stacks import Frame, users_frame
from maya.util.ranks import ranks_text

_MOST_GROUPS = 6
_MOST_STACKS = 3
_MOST_FRAMES = 6


def lines(report: dict[str, Any]) -> list[str]:
    """Format the report of a certain hang."""
    groups = report["groups"]
    found = [_headline(report), "", *_groups(report)]
    found += _divergence(report["divergence"])
    found += [f"  hint: {hint}" for hint in report["hints"]]
    for group in [group for group in groups if group["stack"]][:_MOST_STACKS]:
        found += _stack(group)
    return found


def warning(report: dict[str, Any]) -> list[str]:
    """Format the report of a possible hang."""
    found = [f"warning: {_headline(report)}; the job goes on", "", *_groups(report)]
    return found + [f"  if they do not go on: {hint}" for hint in report["hints"]]


def _groups(report: dict[str, Any]) -> list[str]:
    groups = report["groups"]
    lost = {rank for group in groups if group["state"] == "ended" for rank in group["ranks"]}
    lost.update(report["ranks"]["stuck"])
    found = []
    for group in groups[:_MOST_GROUPS]:
        found += _group(group, lost)
    if len(groups) > _MOST_GROUPS:
        rest = [rank for group in groups[_MOST_GROUPS:] for rank in group["ranks"]]
        file = "no_progress.json" if report["kind"] == "no progress" else "hang.json"
        found.append(f"  {ranks_text(rest)}: {len(groups) - _MOST_GROUPS} more groups, in {file}")
    return found


def _headline(report: dict[str, Any]) -> str:
    stuck, count = report["ranks"]["stuck"], report["ranks"]["all"]
    if report["kind"] == "mismatch":
        return f"mismatch: {report['problem']}"
    if report["kind"] == "no progress":
        return f"no progress for {report['seconds']:.0f} s: no rank shows any activity"
    verb = "can never go on" if len(stuck) < count else "wait for each other and can never go on"
    return f"{report['kind']}: {len(stuck)} of {count} ranks {verb}"


def _at(place: dict[str, Any] | None, word: str) -> str:
    if place is None:
        return ""
    source = f": {place['source']}" if place["source"] else ""
    return f"{word} {PurePath(place['file']).name}:{place['line']}{source}"


def _group(group: dict[str, Any], lost: set[int]) -> list[str]:
    """Format one group. `lost`: ranks that will never call anything."""
    ranks = ranks_text(group["ranks"])
    verb = {"waits": "waits" if len(group["ranks"]) == 1 else "wait"}.get(group["state"], "")
    found = [f"  {ranks}: {verb} {group['doing']}".replace(":  ", ": ")]
    called, stands = group["called_at"], group["stands_at"]
    if group["in_backward"]:
        found.append(f"      called in backward{_at(called, ', probably that at')}")
    elif called is not None:
        found.append(f"      {_at(called, 'at' if called == stands else 'called at')}")
    if stands is not None and stands != called:
        found.append(f"      {_at(stands, 'now at')}")
    queued = group["queued"]
    missing = [rank for rank in group["missing"] if rank not in queued]
    never = [rank for rank in missing if rank in lost]
    late = [rank for rank in missing if rank not in lost]
    if never:
        found.append(f"      {ranks_text(never)} never {_omission(group)}")
    if late:
        found.append(f"      {ranks_text(late)} {_has(late)} not {_omission(group)} yet")
    if queued:
        found.append(f"      {ranks_text(queued)} {_has(queued)} called it and queued it behind another call")
    return found


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _omission(group: dict[str, Any]) -> str:
    """The action that the missing ranks have not taken."""
    if group["call"] is None or group["call"].get("peer") is None:
        return "called it"
    return "received it" if group["call"]["name"].startswith("send") else "sent it"


def _divergence(divergence: dict[str, Any] | None) -> list[str]:
    if divergence is None:
        return []
    last = divergence["last_in_common"]
    if last is None:
        found = [f"  nothing before it on {divergence['group']}"]
    else:
        found = [f"  last in common on {divergence['group']}: {_called(last)}"]
    then = divergence["then"]
    if len({each["called"] and (each["called"]["name"], _line(each["called"])) for each in then}) > 1:
        for each in then[:_MOST_GROUPS]:
            called = _called(each["called"]) if each["called"] else "nothing"
            found.append(f"      then {ranks_text(each['ranks'])}: {called}")
    return found


def _called(call: dict[str, Any]) -> str:
    return f"{call['name']} #{call['number']}{_at(call['called_at'], ' at')}"


def _line(call: dict[str, Any]) -> object:
    return call["called_at"] and call["called_at"]["line"]


def _stack(group: dict[str, Any]) -> list[str]:
    """Format the innermost frames of the user's code, and the function that they called."""
    frames = [Frame(frame["file"], frame["line"], frame["function"]) for frame in group["stack"]]
    user = users_frame(frames)
    first = max(0, frames.index(user) - 1) if user else 0
    shown = [frame for frame in frames[first:] if not frame.file.startswith("<") and frame.function != "wrapper"]
    shown = shown[:_MOST_FRAMES]
    found = ["", f"  stack of rank {group['ranks'][0]}, innermost first:"]
    return found + [f"    {frame.place} {frame.function}: {frame.source}".rstrip(": ") for frame in shown]
