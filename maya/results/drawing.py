"""What is drawn of a rank: which steps, which records, when the host came to them, what rows are called.

In: a `Result` whose timeline has the rank in detail. Out: a `Drawing`; kineto_host and kineto_device make events of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from maya.replay.record_kinds import REPLAYED_KINDS
from maya.replay.thread_groups import thread_groups
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.host_spans import HostSpans, host_spans
from maya.results.result import Result
from maya.trace import RecordKind

DEFAULT_STREAM = 7  # what CUPTI calls it
MOST_STEPS = 3
_MOST_WORKS = 20_000
_FIRST_CORRELATION = 1_000_000
_MAIN = 1  # thread
_FIRST_PROCESS = 10_000  # beyond the numbers of devices


def class_of(timeline: Timeline, rank: int) -> GroupTimeline:
    """The class that a rank is in."""
    for one in timeline.groups:
        if rank in one.ranks:
            return one
    raise ValueError(f"rank {rank} asked nothing of its GPU, so there is nothing to draw")


def stream_number(stream: int) -> int:
    """What a stream of a trace is called in files."""
    return DEFAULT_STREAM + stream


def group_name(communicator: int) -> str:
    return str(communicator - 1)


def group_description(communicator: int) -> str:
    return "default_pg" if communicator == 1 else "undefined"


@dataclass(frozen=True, eq=False)
class Drawing:
    result: Result
    rank: int
    most_steps: int

    # ---- what is drawn ----

    @cached_property
    def one(self) -> GroupTimeline:
        return class_of(self.result.timeline, self.rank)

    @cached_property
    def steps(self) -> range:
        """The last measured steps, one after another: fewer where they are long, but two, because HTA leaves out the
        last one."""
        measured = self.result.steps.measured
        first = max(measured[0], measured[-1] - self.most_steps + 1)
        while measured[-1] - first > 1 and self._class_rows[measured[-1] + 1] - self._class_rows[first] > _MOST_WORKS:
            first += 1
        return range(first, measured[-1] + 1)

    @cached_property
    def _class_rows(self) -> npt.NDArray[np.intp]:
        """Of all steps: the rows of rank_class.records at which they begin, and the last one ends."""
        number = next(at for at, one in enumerate(self.result.timeline.groups) if one is self.one)
        return self.result.steps.groups[number].rows

    @cached_property
    def bounds(self) -> npt.NDArray[np.intp]:
        """Rows at which the steps that are drawn begin and the last one ends."""
        return self._class_rows[self.steps.start : self.steps.stop + 1]

    @cached_property
    def rows(self) -> range:
        return range(int(self.bounds[0]), int(self.bounds[-1]))

    @cached_property
    def spans(self) -> HostSpans:
        detail = self.result.timeline.details[self.rank]
        return host_spans(detail.trace, detail.host_ns, detail.own_ns, self.result.timeline.settings.host)

    @cached_property
    def positions(self) -> list[int]:
        """Records of the trace that are drawn, by when they began on the host, outer ones first: all from the last
        launch before the steps to the first one after them, of threads that a replay heeds."""
        records, trace = self.one.rank_class.records, self.one.rank_class.trace
        first = int(records[self.rows.start - 1]) + 1 if self.rows.start > 0 else 0
        last = int(records[self.rows.stop]) if self.rows.stop < len(records) else len(trace.records)
        chosen = np.arange(first, max(first, last))
        threads = trace.records["thread"][chosen]
        heeded = thread_groups(trace.records, trace.strings)[threads] >= 0
        chosen = chosen[heeded & (self.spans.begin[chosen] >= self.begin_ns)]
        threads = trace.records["thread"][chosen]
        order = np.lexsort((chosen, threads, -self.spans.end[chosen], self.spans.begin[chosen]))
        found: list[int] = chosen[order].tolist()
        return found

    # What is numbered anew: numbers of a trace depend on how its threads raced.

    @cached_property
    def op_ids(self) -> dict[int, int]:
        """Of ops and annotations, by their numbers in the trace; 0 is none."""
        records = self.one.rank_class.trace.records
        ops = [at for at in self.positions if records["kind"][at] in (RecordKind.OP, RecordKind.ANNOTATION)]
        return {int(records["op"][at]): number for number, at in enumerate(ops, start=1)}

    @cached_property
    def correlations(self) -> dict[int, int]:
        """What joins a launch and its work, by the launch's record. It needs 32 bits: HTA keeps numbers of events in
        the same type."""
        calls = REPLAYED_KINDS[self.one.rank_class.trace.records["kind"][self.positions]].tolist()
        launched = [at for at, is_call in zip(self.positions, calls, strict=True) if is_call]
        return {at: number for number, at in enumerate(launched, start=_FIRST_CORRELATION)}

    @cached_property
    def threads(self) -> dict[int, int]:
        """Of threads of the trace: the main one is the process itself, as on Linux, others follow as they appear."""
        found = dict.fromkeys([_MAIN, *self.one.rank_class.trace.records["thread"][self.positions].tolist()])
        return {thread: self.pid + number for number, thread in enumerate(found)}

    @property
    def pid(self) -> int:
        return _FIRST_PROCESS + self.rank

    @property
    def device_number(self) -> int:
        return self.rank % self.result.timeline.settings.ranks_per_node

    @cached_property
    def communicators(self) -> dict[int, tuple[int, ...]]:
        at = int(np.searchsorted(self.one.ranks, self.rank))
        return dict(sorted(self.one.communicators[at].items())) if len(self.one.communicators) else {}

    @cached_property
    def begin_ns(self) -> int:
        """The host's time at which the first of the steps begins."""
        return self.host_bound(0)

    def host_bound(self, number: int) -> int:
        """The host's time at a boundary of steps: when the launch before it returned."""
        row = int(self.bounds[number])
        return int(self.spans.end[self.one.rank_class.records[row - 1]]) if row else 0

    @cached_property
    def streams(self) -> list[int]:
        """The numbers of the streams that are drawn."""
        positions = self.one.rank_class.records[self.rows.start : self.rows.stop]
        return [
            stream_number(stream)
            for stream in np.unique(self.one.rank_class.trace.records["stream"][positions]).tolist()
        ]
