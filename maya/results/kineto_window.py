"""The part of a rank's timeline that goes into its Kineto trace: steps, records, host times, numbers of threads.

In: a `Result` whose timeline has a `RankDetail` of the rank. Out: a `KinetoWindow`, from which kineto_host and
kineto_device make events.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from maya.replay.record_kinds import REPLAYED_KINDS
from maya.replay.thread_groups import thread_groups
from maya.replay.timeline import GroupTimeline, Timeline
from maya.results.host_spans import HostSpans, host_spans
from maya.results.result import Result
from maya.trace import RecordKind
from maya.util.arrays import Indices

DEFAULT_STREAM = 7  # as CUPTI numbers it
MOST_STEPS = 3
_MOST_KERNELS = 20_000
_FIRST_CORRELATION = 1_000_000
_MAIN = 1  # number of the main thread
_FIRST_PROCESS = 10_000  # above the numbers of devices


def group_of(timeline: Timeline, rank: int) -> GroupTimeline:
    """The replay group of a rank."""
    for group in timeline.groups:
        if rank in group.ranks:
            return group
    raise ValueError(f"rank {rank} did nothing on its GPU, so it has no trace")


def stream_number(stream: int) -> int:
    """The number of a trace's stream in Kineto files."""
    return DEFAULT_STREAM + stream


def group_name(communicator: int) -> str:
    return str(communicator - 1)


def group_description(communicator: int) -> str:
    return "default_pg" if communicator == 1 else "undefined"


@dataclass(frozen=True, eq=False)
class KinetoWindow:
    """The last measured steps of one rank, as they are written to its trace."""

    result: Result
    rank: int
    most_steps: int

    # ---- contents ----

    @cached_property
    def group(self) -> GroupTimeline:
        return group_of(self.result.timeline, self.rank)

    @cached_property
    def steps(self) -> range:
        """The last measured steps: fewer where steps have many kernels, but at least two, because HTA ignores the last
        one."""
        measured = self.result.steps.measured
        first = max(measured[0], measured[-1] - self.most_steps + 1)
        while measured[-1] - first > 1 and self._step_rows[measured[-1] + 1] - self._step_rows[first] > _MOST_KERNELS:
            first += 1
        return range(first, measured[-1] + 1)

    @cached_property
    def _step_rows(self) -> Indices:
        """For all steps of the run, the rows at which they begin, and where the last one ends."""
        number = next(at for at, group in enumerate(self.result.timeline.groups) if group is self.group)
        return self.result.steps.groups[number].rows

    @cached_property
    def bounds(self) -> Indices:
        """The rows at which the steps of the window begin, and where the last one ends."""
        return self._step_rows[self.steps.start : self.steps.stop + 1]

    @cached_property
    def rows(self) -> range:
        return range(int(self.bounds[0]), int(self.bounds[-1]))

    @cached_property
    def spans(self) -> HostSpans:
        detail = self.result.timeline.details[self.rank]
        return host_spans(detail.trace, detail.host_ns, detail.own_ns, self.result.timeline.settings.host)

    @cached_property
    def positions(self) -> list[int]:
        """The records in the window, by when they began on the host, outer ones first: all from the last launch before
        the steps to the first launch after them, of threads that are replayed."""
        records, trace = self.group.rank_class.records, self.group.rank_class.trace
        first = int(records[self.rows.start - 1]) + 1 if self.rows.start > 0 else 0
        last = int(records[self.rows.stop]) if self.rows.stop < len(records) else len(trace.records)
        chosen = np.arange(first, max(first, last))
        threads = trace.records["thread"][chosen]
        replayed = thread_groups(trace.records, trace.strings)[threads] >= 0
        chosen = chosen[replayed & (self.spans.begin[chosen] >= self.begin_ns)]
        threads = trace.records["thread"][chosen]
        order = np.lexsort((chosen, threads, -self.spans.end[chosen], self.spans.begin[chosen]))
        found: list[int] = chosen[order].tolist()
        return found

    # Ops, launches and threads get new numbers: those in a trace depend on races between threads.

    @cached_property
    def op_ids(self) -> dict[int, int]:
        """The number of each op and annotation, by its number in the trace; 0 is none."""
        records = self.group.rank_class.trace.records
        ops = [at for at in self.positions if records["kind"][at] in (RecordKind.OP, RecordKind.ANNOTATION)]
        return {int(records["op"][at]): number for number, at in enumerate(ops, start=1)}

    @cached_property
    def correlations(self) -> dict[int, int]:
        """The number that links a launch to its kernel, by the launch's record. It needs 32 bits: HTA keeps numbers of
        events in the same type."""
        calls = REPLAYED_KINDS[self.group.rank_class.trace.records["kind"][self.positions]].tolist()
        launched = [at for at, is_call in zip(self.positions, calls, strict=True) if is_call]
        return {at: number for number, at in enumerate(launched, start=_FIRST_CORRELATION)}

    @cached_property
    def threads(self) -> dict[int, int]:
        """Thread ids by number in the trace: the main thread has the process id, as on Linux; others follow in order of
        appearance."""
        found = dict.fromkeys([_MAIN, *self.group.rank_class.trace.records["thread"][self.positions].tolist()])
        return {thread: self.pid + number for number, thread in enumerate(found)}

    @property
    def pid(self) -> int:
        return _FIRST_PROCESS + self.rank

    @property
    def device_number(self) -> int:
        return self.rank % self.result.timeline.settings.ranks_per_node

    @cached_property
    def communicators(self) -> dict[int, tuple[int, ...]]:
        at = int(np.searchsorted(self.group.ranks, self.rank))
        return dict(sorted(self.group.communicators[at].items())) if len(self.group.communicators) else {}

    @cached_property
    def begin_ns(self) -> int:
        """The host's time at which the first step of the window begins."""
        return self.host_bound(0)

    def host_bound(self, number: int) -> int:
        """The host's time at a boundary between steps: when the launch before it returned."""
        row = int(self.bounds[number])
        return int(self.spans.end[self.group.rank_class.records[row - 1]]) if row else 0

    @cached_property
    def streams(self) -> list[int]:
        """The Kineto numbers of the streams in the window."""
        positions = self.group.rank_class.records[self.rows.start : self.rows.stop]
        return [
            stream_number(stream)
            for stream in np.unique(self.group.rank_class.trace.records["stream"][positions]).tolist()
        ]
