"""What grows from the first size of a study to the last.

In: rows with their figures, and the study's `ScalingMode`. Out: `Growth`s, the costliest first. A part of the step
grows if it takes more GPU time for the same work: for a token, or for a step where tokens are unknown. The parts of a
step add up, so their growth explains exactly what the efficiency has lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from maya.api.figures import PlainFigures
from maya.results.time_classes import TITLES, TimeClass
from maya.scaling.efficiency import MIXED, WEAK, ScalingMode, work_of
from maya.scaling.scale_row import ExposedCallFigures, ScaleRow
from maya.util.text import bytes_text, share_text, time_text

_NOTEWORTHY = 0.01  # of the GPU time of the first size
_MOST = 4
_MAIN_CALL = 0.25  # of the growth of exposed communication
_MOST_CALLS = 2
_MEMORY = 0.05


@dataclass(frozen=True)
class Growth(PlainFigures):
    """A part of the step, or of memory, that grows."""

    what: str  # a time class, or "memory"
    cost: float  # more GPU time for the same work, as a share of the first size's; of memory: more bytes
    before: float  # share of the step, or bytes
    after: float
    text: str  # one sentence


def find_growth(rows: Sequence[ScaleRow], mode: ScalingMode) -> list[Growth]:
    """What grows between the first and the last size that succeeded."""
    good = [row for row in rows if row.succeeded]
    if len(good) < 2:
        return []
    first, last = good[0], good[-1]
    parts = _parts(first, last, mode) if mode.work else []
    return [*sorted(parts, key=lambda each: (-each.cost, each.what))[:_MOST], *_memory(first, last)]


def efficiency_text(rows: Sequence[ScaleRow]) -> str:
    """One sentence about the efficiency, and where it falls most."""
    good = [row for row in rows if row.efficiency is not None]
    if len(good) < 2:
        return ""
    last = good[-1]
    text = f"efficiency is {share_text(last.efficiency or 0)} on {last.nproc:,} ranks, compared with {good[0].nproc:,}"
    falls = [((one.efficiency or 0) - (other.efficiency or 0), one, other) for one, other in pairwise(good)]
    fall, one, other = max(falls, key=lambda each: each[0])
    if len(good) > 2 and fall >= _NOTEWORTHY:
        text += f"; it falls most, by {100 * fall:.1f} points, from {one.nproc:,} to {other.nproc:,} ranks"
    return text


def _parts(first: ScaleRow, last: ScaleRow, mode: ScalingMode) -> list[Growth]:
    whole = _cost(first, sum(first.class_ns.values()), mode) or 1.0
    found = []
    for name in last.class_ns:
        ns = first.class_ns.get(name, 0), last.class_ns[name]
        cost = (_cost(last, ns[1], mode) - _cost(first, ns[0], mode)) / whole
        if cost < _NOTEWORTHY:
            continue
        shares = _share(first, ns[0]), _share(last, ns[1])
        text = f"{TITLES[TimeClass(name)]} {_change(ns, shares, mode)}"
        if name == TimeClass.COMMUNICATION.value:
            text += _calls_text(first, last, mode)
        found.append(Growth(name, cost, *shares, text))
    return found


def _change(ns: tuple[int, int], shares: tuple[float, float], mode: ScalingMode) -> str:
    if shares[1] > shares[0]:
        times = f" ({time_text(ns[0])} to {time_text(ns[1])})" if mode.kind == WEAK else ""
        return f"grows from {share_text(shares[0])} to {share_text(shares[1])} of the step{times}"
    per = "step" if mode.work == "steps" or mode.kind == MIXED else mode.work.removesuffix("s")
    return (
        f"takes more GPU time per {per}, though its share of the step falls from {share_text(shares[0])} to "
        f"{share_text(shares[1])}"
    )


def _calls_text(first: ScaleRow, last: ScaleRow, mode: ScalingMode) -> str:
    """The calls behind the growth of exposed communication."""
    grown = []
    for before, after in matching_calls(first.exposed_calls, last.exposed_calls):
        old = 0 if before is None else before.ns
        grown.append((_cost(last, after.ns, mode) - _cost(first, old, mode), old, after))
    total = sum(cost for cost, _, _ in grown if cost > 0)
    main = [each for each in sorted(grown, key=lambda each: -each[0]) if each[0] > 0 and each[0] >= _MAIN_CALL * total]
    texts = [
        f"{after.call} of groups of {after.ranks:,} ({share_text(_share(first, old))} to "
        f"{share_text(_share(last, after.ns))})"
        for _, old, after in main[:_MOST_CALLS]
    ]
    return f": {' and '.join(texts)}" if texts else ""


def matching_calls(
    before: Sequence[ExposedCallFigures], after: Sequence[ExposedCallFigures]
) -> list[tuple[ExposedCallFigures | None, ExposedCallFigures]]:
    """Each call of the larger job with the same call of the smaller one: in a group of the same size if there is one,
    otherwise in the group that has the same place among the groups whose size changes."""
    pairs: list[tuple[ExposedCallFigures | None, ExposedCallFigures]] = []
    for name in dict.fromkeys(each.call for each in after):
        old = {each.ranks: each for each in before if each.call == name}
        new = {each.ranks: each for each in after if each.call == name}
        pairs += [(old[ranks], new[ranks]) for ranks in sorted(old.keys() & new.keys())]
        changed_old = [old[ranks] for ranks in sorted(old.keys() - new.keys(), reverse=True)]
        changed_new = [new[ranks] for ranks in sorted(new.keys() - old.keys(), reverse=True)]
        pairs += [(one, other) for one, other in zip_longest(changed_old, changed_new) if other is not None]
    return pairs


def _memory(first: ScaleRow, last: ScaleRow) -> list[Growth]:
    old, new = first.peak_memory_bytes or 0, last.peak_memory_bytes or 0
    if new - old <= _MEMORY * old:
        return []
    parts = {name: last.memory_bytes[name] - first.memory_bytes.get(name, 0) for name in last.memory_bytes}
    part = max(parts, key=lambda name: parts[name], default="")
    mostly = f", mostly {MEMORY_TITLES[part]}" if part else ""
    return [
        Growth("memory", new - old, old, new, f"peak memory grows from {bytes_text(old)} to {bytes_text(new)}{mostly}")
    ]


MEMORY_TITLES = {
    "reserved": "PyTorch's allocator",
    "nccl": "NCCL's buffers",
    "context": "the CUDA context",
    "workspaces": "workspaces",
}


def _cost(row: ScaleRow, ns: int, mode: ScalingMode) -> float:
    """GPU time for a unit of work."""
    return ns * (row.gpus or 1) / (work_of(row, mode) or 1.0)


def _share(row: ScaleRow, ns: int) -> float:
    return ns / max(1, sum(row.class_ns.values()))
