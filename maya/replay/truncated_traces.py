"""Warnings about truncated traces, which end before the script did.

In: the groups of a timeline, and the number of complete steps in their traces, once it is known. Out: a sentence for
each reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maya.replay.timeline import GroupTimeline
from maya.util.ranks import ranks_text


def truncations(groups: Sequence[GroupTimeline], whole_steps: Mapping[int, int] | None = None) -> list[str]:
    """A sentence for each reason; ranks with the same reason share it. `whole_steps`: complete steps by rank."""
    ranks_by_reason: dict[tuple[str, str], list[int]] = {}
    for group in groups:
        trace = group.rank_class.trace
        if not trace.complete:
            ranks_by_reason.setdefault((trace.problem, trace.remedy), []).extend(group.ranks.tolist())
    return [_sentence(sorted(ranks), *reason, whole_steps) for reason, ranks in ranks_by_reason.items()]


def _sentence(ranks: Sequence[int], problem: str, remedy: str, whole_steps: Mapping[int, int] | None) -> str:
    whose = f"the trace of {ranks_text(ranks)}" if len(ranks) == 1 else f"the traces of {ranks_text(ranks)}"
    what_to_do = f"; {remedy}" if remedy else ""
    if whole_steps is None:
        return f"{whose} {'is' if len(ranks) == 1 else 'are'} cut short: {problem}{what_to_do}"
    counts = sorted({whole_steps[rank] for rank in ranks})
    steps = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    ends = "ends" if len(ranks) == 1 else "end"
    return f"{whose} {ends} after {steps} complete step{'' if counts == [1] else 's'}: {problem}{what_to_do}"
