"""Strong or weak scaling, and how efficient each size is.

In: the rows of a study, and what the user says about them. Out: a `ScalingMode`, and rows with speedup and efficiency.
The efficiency of a size is the work that a GPU does in a second, compared with the first size. Work is counted in
tokens (or images), or in FLOPs where tokens are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from maya.api.figures import PlainFigures
from maya.scaling.scale_row import ScaleRow
from maya.util.text import count_text

STRONG, WEAK, MIXED, UNKNOWN = "strong", "weak", "mixed", "unknown"
GIVEN = (STRONG, WEAK)  # what a user may say
_TOKENS_TOLERANCE = 0.01
_FLOPS_TOLERANCE = 0.05  # padding and uneven shards change FLOPs a little


@dataclass(frozen=True)
class ScalingMode(PlainFigures):
    """What stays the same from size to size."""

    kind: str  # "strong", "weak", "mixed" or "unknown"
    work: str  # what work is counted in: "tokens", "images", "FLOPs", "steps"; empty: unknown
    text: str  # one sentence


def find_mode(rows: Sequence[ScaleRow], given: str | None = None) -> ScalingMode:
    """Strong or weak scaling, from the work of a step of every size that succeeded."""
    good = [row for row in rows if row.succeeded]
    if len(good) < 2:
        return ScalingMode(UNKNOWN, "", "scaling needs two sizes that succeed")
    work = _work_name(good)
    found = _kind(good, work)
    if given is not None:
        return _given_mode(given, found, work)
    if found == UNKNOWN:
        text = "strong or weak scaling: unknown, as the tokens of a step are; use --tokens-per-step or --scaling"
        return ScalingMode(UNKNOWN, "", text)
    first, last = _amount(good[0], work), _amount(good[-1], work)
    if found == STRONG:
        text = f"strong scaling: a step has {_text(first, work)} at every size"
    elif found == WEAK:
        text = f"weak scaling: a step has {_text(first / (good[0].gpus or 1), work)} per GPU at every size"
    else:
        text = (
            f"neither strong nor weak scaling: a step has {_text(first, work)} on {good[0].nproc:,} ranks and "
            f"{_text(last, work)} on {good[-1].nproc:,}; efficiency compares {work}/s per GPU"
        )
    return ScalingMode(found, work, text)


def _given_mode(given: str, found: str, work: str) -> ScalingMode:
    """The user's word counts; a contradiction is stated."""
    meaning = "the same work in every step" if given == STRONG else "the same work per GPU in every step"
    if found in (UNKNOWN, given):
        return ScalingMode(given, work if found == given else "steps", f"{given} scaling, as given: {meaning}")
    text = f"{given} scaling, as given: {meaning} is assumed, although {work} per step say otherwise"
    return ScalingMode(given, "steps", text)


def with_efficiency(rows: Sequence[ScaleRow], mode: ScalingMode) -> list[ScaleRow]:
    """The rows, with speedup and efficiency of those that succeeded."""
    base = next((row for row in rows if row.succeeded), None)
    if base is None or not mode.work:
        return [replace(row, speedup=None, efficiency=None) for row in rows]
    return [_compared(row, base, mode) for row in rows]


def work_of(row: ScaleRow, mode: ScalingMode) -> float:
    """The work of a step, in a unit that is the same for all rows of a study."""
    if mode.work == "steps":
        return float(row.gpus or 1) if mode.kind == WEAK else 1.0
    return _amount(row, mode.work)


def _compared(row: ScaleRow, base: ScaleRow, mode: ScalingMode) -> ScaleRow:
    if not row.step_time_ns or not base.step_time_ns:
        return replace(row, speedup=None, efficiency=None)
    speedup = work_of(row, mode) / row.step_time_ns / (work_of(base, mode) / base.step_time_ns)
    return replace(row, speedup=speedup, efficiency=speedup * (base.gpus or 1) / (row.gpus or 1))


def _work_name(rows: Sequence[ScaleRow]) -> str:
    units = {row.unit for row in rows}
    if len(units) == 1 and all(row.samples_per_step for row in rows):
        return str(units.pop())
    return "FLOPs" if all(row.flops_per_step for row in rows) else ""


def _amount(row: ScaleRow, work: str) -> float:
    return float((row.flops_per_step if work == "FLOPs" else row.samples_per_step) or 0)


def _kind(rows: Sequence[ScaleRow], work: str) -> str:
    if not work:
        return UNKNOWN
    tolerance = _FLOPS_TOLERANCE if work == "FLOPs" else _TOKENS_TOLERANCE
    total = [_amount(row, work) for row in rows]
    each = [amount / (row.gpus or 1) for amount, row in zip(total, rows, strict=True)]
    if max(total) <= min(total) * (1 + tolerance):
        return STRONG
    return WEAK if max(each) <= min(each) * (1 + tolerance) else MIXED


def _text(amount: float, work: str) -> str:
    return count_text(amount, work) if work == "FLOPs" else f"{amount:,.0f} {work}"
