"""Compare two results of one run.

In: the `Result` of the run as recorded and that of a changed replay. Out: `Figures` of both, and the rows of a table.
Times by class are means over all ranks and measured steps, so that they add up to a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maya.replay.timeline import GroupTimeline, Timeline
from maya.results import CLASSES, TITLES, Result, TimeClass
from maya.util.text import bytes_text, share_text

_SHORT_NS = 10_000_000  # steps below this are shown in microseconds
_TINY = 1000  # a part below 1/1000 of the whole gets no percentage
_FIELDS = ("launched_ns", "start_ns", "end_ns", "arrival_ns")


@dataclass(frozen=True)
class Figures:
    """The figures of one result."""

    step_ns: int
    samples_per_second: float | None
    unit: str  # of samples: "tokens" or "images"
    mfu: float | None
    hfu: float | None
    class_ns: dict[TimeClass, int]
    hidden_ns: int
    peak_bytes: int
    peak_rank: int
    needed_bytes: int  # without memory that the allocator has reserved but not allocated
    capacity_bytes: int
    gpu_hours_per_step: float
    price_per_step: float | None

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.capacity_bytes

    @property
    def fits_text(self) -> str:
        if not self.fits:
            return "DOES NOT FIT"
        return "fits" if self.peak_bytes <= self.capacity_bytes else "fits tightly"

    def table(self) -> dict[str, Any]:
        """The table for --json."""
        return {
            "step_ns": self.step_ns,
            f"{self.unit}_per_second": self.samples_per_second,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "class_ns": {of.value: ns for of, ns in self.class_ns.items()},
            "hidden_communication_ns": self.hidden_ns,
            "peak_memory_bytes": self.peak_bytes,
            "peak_memory_rank": self.peak_rank,
            "needed_memory_bytes": self.needed_bytes,
            "memory_capacity_bytes": self.capacity_bytes,
            "memory_fits": self.fits,
            "gpu_hours_per_step": self.gpu_hours_per_step,
            "price_per_step": self.price_per_step,
        }


@dataclass(frozen=True)
class ComparedRow:
    """A row of the table."""

    name: str
    before: str
    after: str
    difference: str = ""
    share: str = ""


def figures_of(result: Result) -> Figures:
    """The figures of a result."""
    throughput, memory = result.throughput, result.memory
    worst = memory.of_rank(memory.worst_rank)
    ranks = max(1, result.timeline.world_size)
    means = result.breakdown.mean_ns.sum(axis=0) // ranks
    return Figures(
        step_ns=result.step_ns,
        samples_per_second=throughput.samples_per_second,
        unit=throughput.samples.unit if throughput.samples else "tokens",
        mfu=throughput.mfu,
        hfu=throughput.hfu,
        class_ns=dict(zip(CLASSES, means.tolist(), strict=True)),
        hidden_ns=int(result.breakdown.mean_hidden_ns.sum()) // ranks,
        peak_bytes=worst.total if worst else 0,
        peak_rank=memory.worst_rank,
        needed_bytes=max((peak.total - peak.reserved + peak.allocated for peak in memory.peaks), default=0),
        capacity_bytes=memory.capacity,
        gpu_hours_per_step=throughput.gpu_hours_per_step,
        price_per_step=throughput.price_per_step,
    )


def rows_of(before: Figures, after: Figures) -> list[ComparedRow]:
    """The rows of the table, without those that are zero in both."""
    time = _microseconds if max(before.step_ns, after.step_ns) < _SHORT_NS else _milliseconds
    rows = [_row("step time", before.step_ns, after.step_ns, time)]
    if before.samples_per_second and after.samples_per_second:
        digits = 0 if before.samples_per_second >= 100 else 2
        rates = before.samples_per_second, after.samples_per_second
        rows.append(_row(f"{before.unit}/s", *rates, f"{{:,.{digits}f}}".format))
    for name, old, new in (("MFU", before.mfu, after.mfu), ("HFU", before.hfu, after.hfu)):
        if old is not None and new is not None and (name == "MFU" or old != before.mfu):
            points = f"{100 * (new - old):+.1f} points"
            rows.append(ComparedRow(name, share_text(old), share_text(new), points if new != old else "same"))
    if before.price_per_step is not None and after.price_per_step is not None:
        rows.append(
            _row("price of 1000 steps", 1000 * before.price_per_step, 1000 * after.price_per_step, "{:.2f}".format)
        )
    rows.append(ComparedRow("breakdown, mean over ranks", "", ""))
    for of in CLASSES:
        if before.class_ns[of] or after.class_ns[of]:
            rows.append(_row(f"  {TITLES[of]}", before.class_ns[of], after.class_ns[of], time, before.step_ns))
    if before.hidden_ns or after.hidden_ns:
        rows.append(_row("  hidden communication", before.hidden_ns, after.hidden_ns, time, before.step_ns))
    rows.append(_row(f"peak memory, rank {after.peak_rank}", before.peak_bytes, after.peak_bytes, bytes_text))
    has = bytes_text(before.capacity_bytes), bytes_text(after.capacity_bytes)
    rows.append(ComparedRow("  GPU capacity", *has, after.fits_text))
    return rows


def same_timeline(one: Timeline, other: Timeline) -> bool:
    """Whether everything happened at the same times on all ranks."""
    if not np.array_equal(one.end_ns, other.end_ns) or not np.array_equal(one.host_end_ns, other.host_end_ns):
        return False
    ours, theirs = _by_rank(one), _by_rank(other)
    pairs = {(id(ours[rank]), id(theirs[rank])): rank for rank in ours if rank in theirs}
    return ours.keys() == theirs.keys() and all(_same_class(ours[rank], theirs[rank]) for rank in pairs.values())


def count_events(timeline: Timeline) -> int:
    return sum(len(group.rank_class.records) * len(group.ranks) for group in timeline.groups)


def _milliseconds(ns: float) -> str:
    return f"{ns / 1e6:,.2f} ms"


def _microseconds(ns: float) -> str:
    return f"{ns / 1e3:,.1f} us"


def _same_class(one: GroupTimeline, other: GroupTimeline) -> bool:
    return all(np.array_equal(getattr(one, name)[:, 0], getattr(other, name)[:, 0]) for name in _FIELDS)


def _by_rank(timeline: Timeline) -> dict[int, GroupTimeline]:
    return {rank: group for group in timeline.groups for rank in group.ranks.tolist()}


def _row(name: str, before: float, after: float, written: Callable[[Any], str], whole: float = 0) -> ComparedRow:
    """A row of two numbers. `whole`: the total that they are part of; a tiny part gets no percentage."""
    if before == after:
        return ComparedRow(name, written(before), written(after), "same")
    away = after - before
    sign = "+" if away > 0 else "-"
    share = f"{100 * away / before:+.1f} %" if before and before * _TINY >= whole else ""
    return ComparedRow(name, written(before), written(after), f"{sign}{written(abs(away))}", share)


def aligned(rows: Sequence[ComparedRow], heads: ComparedRow) -> list[str]:
    """The lines of the table: names left-aligned, numbers right-aligned."""
    table = [heads, *rows]
    name = max(len(row.name) for row in table)
    before, after, difference, share = (
        max(len(getattr(row, each)) for row in table) for each in ("before", "after", "difference", "share")
    )
    return [
        (f"{row.name:<{name}}  {row.before:>{before}}  {row.after:>{after}}  {row.difference:>{difference}}  "
         f"{row.share:>{share}}").rstrip()
        for row in table
    ]  # fmt: skip
