"""A timeline as text: the kernels and collectives of each rank with their times. Golden files hold such texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maya.replay.timeline import Timeline


def text_of(timeline: Timeline) -> str:
    """A line for each kernel and collective, rank by rank and stream by stream; times in microseconds."""
    lines: list[str] = []
    found = [(int(rank), group) for group in timeline.groups for rank in group.ranks.tolist()]
    for rank, group in sorted(found, key=lambda pair: pair[0]):
        rank_class = group.rank_class
        records = rank_class.trace.records[rank_class.records]
        lines.append(
            f"rank {rank}: ends at {_us(int(timeline.end_ns[rank]))}, host {_us(int(timeline.host_end_ns[rank]))}"
        )
        for row in np.lexsort((np.arange(len(records)), records["stream"])).tolist():
            signature = rank_class.trace.signature(int(records["signature"][row]))
            name = next(str(signature[key]) for key in ("kernel", "call", "copy") if key in signature)
            start, end, arrival = (int(times[row, 0]) for times in (group.start_ns, group.end_ns, group.arrival_ns))
            waited = f"  since {_us(arrival)}" if arrival != start else ""
            lines.append(f"  stream {records['stream'][row]}  {_us(start):>9} - {_us(end):>9}  {name}{waited}")
    lines += [f"problem: {problem}" for problem in timeline.problems]
    return "\n".join(lines) + "\n"


def _us(ns: int) -> str:
    return f"{ns // 1000}" if ns % 1000 == 0 else f"{ns / 1000:.3f}"


def ends(timeline: Timeline) -> Sequence[int]:
    return [int(end) for end in timeline.end_ns]
