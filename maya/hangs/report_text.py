"""Formats a hang report for the terminal: about one screen, whatever the number of ranks.

In: a report (coordinator/hangs/hang_report.py). Out: lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from maya.util.ranks import ranks_text

_MOST_GROUPS = 6
_MOST_ODD_GROUPS = 10
_LONGEST_SOURCE = 120

Nodes = Mapping[str, Sequence[int]]  # the ranks of each machine; empty: there is only one


def lines(report: dict[str, Any]) -> list[str]:
    """Format the report of a certain hang."""
    found = [_headline(report), "", *_groups(report)]
    found += _divergence(report["divergence"])
    found += _shift(report)
    found += [f"  hint: {hint}" for hint in report["hints"]]
    return found


def warning(report: dict[str, Any]) -> list[str]:
    """Format the report of a possible hang."""
    found = [f"warning: {_headline(report)}; the job goes on", "", *_groups(report)]
    return found + [f"  if they do not go on: {hint}" for hint in report["hints"]]


def activity(report: dict[str, Any]) -> list[str]:
    """Format a report that the user has asked for: what all ranks do now."""
    count = report["ranks"]["all"]
    if count == 0:
        return ["no rank has started yet"]
    return [f"now, {count} {'rank does' if count == 1 else 'ranks do'} this:", "", *_groups(report)]


def odd_rank(report: dict[str, Any]) -> int | None:
    """The rank that differs from the others in a way that explains the hang, if there is one."""
    odd: list[int] = report["odd"]
    return odd[0] if odd else None


def _named(ranks: Sequence[int], nodes: Nodes) -> str:
    """`rank 17 on node-b`: the node is named if all of the ranks are there."""
    here = [node for node, its in nodes.items() if set(ranks).issubset(its)]
    return f"{ranks_text(ranks)} on {here[0]}" if here and ranks else ranks_text(ranks)


def _groups(report: dict[str, Any]) -> list[str]:
    groups, nodes = report["groups"], report.get("nodes", {})
    lost = {rank for group in groups if group["state"] == "ended" for rank in group["ranks"]}
    lost.update(report["ranks"]["stuck"])
    odd = set(report["odd"])
    count = min(_MOST_ODD_GROUPS, sum(1 for group in groups if odd.intersection(group["ranks"])))
    count = max(count + 1, _MOST_GROUPS)  # at least one that shows what the others do
    found = []
    for group in groups[:count]:
        found += _group(group, lost, nodes)
    if len(groups) > count:
        rest = [rank for group in groups[count:] for rank in group["ranks"]]
        file = {"no progress": "no_progress.json", "activity": "stacks.json"}.get(report["kind"], "hang.json")
        found.append(f"  {ranks_text(rest)}: {len(groups) - count} more groups, in {file}")
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
    source = place["source"]
    if len(source) > _LONGEST_SOURCE:
        source = f"{source[:_LONGEST_SOURCE]}…"
    return f"{word} {PurePath(place['file']).name}:{place['line']}{f': {source}' if source else ''}"


def _group(group: dict[str, Any], lost: set[int], nodes: Nodes) -> list[str]:
    """Format one group. `lost`: ranks that will never call anything."""
    ranks = _named(group["ranks"], nodes)
    verb = {"waits": "waits" if len(group["ranks"]) == 1 else "wait"}.get(group["state"], "")
    found = [f"  {ranks}: {verb} {group['doing']}".replace(":  ", ": ")]
    called, stands = group["called_at"], group["stands_at"]
    if group["in_backward"]:
        found.append(f"      called in backward{_at(called, ', probably that at')}")
    elif called is not None:
        found.append(f"      {_at(called, 'at' if called == stands else 'called at')}")
    if called is not None:
        found += [f"        {_at(caller, 'from')}" for caller in group["callers"]]
    if stands is not None and stands != called:
        elsewhere = f" ({_others(group['elsewhere'])} elsewhere)" if group["elsewhere"] else ""
        found.append(f"      {_at(stands, 'now at')}{elsewhere}")
    queued = group["queued"]
    missing = [rank for rank in group["missing"] if rank not in queued]
    never = [rank for rank in missing if rank in lost]
    late = [rank for rank in missing if rank not in lost]
    if never:
        found.append(f"      {_named(never, nodes)} never {_omission(group)}")
    if late:
        found.append(f"      {_named(late, nodes)} {_has(late)} not {_omission(group)} yet")
    if queued:
        found.append(f"      {_named(queued, nodes)} {_has(queued)} called it and queued it behind another call")
    return found


def _others(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count} ranks are"


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


def _shift(report: dict[str, Any]) -> list[str]:
    """The call that some ranks probably left out, or made in addition."""
    shift, is_mismatch = report["shift"], report["kind"] == "mismatch"
    if shift is None:
        return []
    odd = ranks_text(shift["odd"])
    verb = {"skipped": "did not call", "new": "left the usual order of calls with"}.get(
        shift["difference"], "alone called"
    )
    if verb == "alone called" and len(shift["odd"]) > 1:
        verb = "called in addition"
    found: list[str] = []
    for call in shift["calls"]:
        times = f" ({call['times']} times)" if call["times"] > 1 else ""
        begin = f"  suspicion: {odd} {verb}" if not found else "      nor" if verb == "did not call" else "      and"
        found.append(f"{begin} {call['name']}{_at(call['called_at'], ' at') or ' in backward'}{times}")
        found += [f"        {_at(caller, 'from')}" for caller in call["callers"][1:]]
    if shift["more_calls"]:
        found.append(f"      and {shift['more_calls']} more")
    skipped = shift["difference"] == "skipped"
    place = _at(shift["odd_at"] if skipped else shift["others_at"], " at") or " in backward"
    whose = odd if skipped else ranks_text(shift["others"])
    found.append(f"      call {shift['number']} of {whose} on {shift['group']} is that{place}")
    if not is_mismatch:
        found.append("      this call and all later ones were matched with wrong ones, because their sizes agree")
    return found
