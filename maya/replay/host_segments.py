"""The host's part of a course: a trace -> segments of its threads, and where in them each record is."""

from __future__ import annotations

import numpy as np

from maya.replay.replay_plan import Segment
from maya.replay.run_settings import HostCosts
from maya.replay.thread_groups import thread_groups
from maya.trace import Flag, RecordKind, Trace
from maya.util.arrays import Indices, Integers


class HostPart:
    """`segment` and `offset` are of each record: the host cursor after it is `offset` after its segment's beginning.
    `own` is what the program's own code took before it: `host_times`, if they were measured, else what its ops cost."""

    def __init__(self, trace: Trace, costs: HostCosts, host_times: Integers | None = None) -> None:
        records = trace.records
        self._kinds = records["kind"]
        self.segment = np.zeros(len(records), dtype=np.int32)
        self.offset = np.zeros(len(records), dtype=np.int64)
        self.segments: list[Segment] = []
        self.ended_by: dict[int, Segment] = {}  # by the position of a synchronisation
        self._groups = thread_groups(records, trace.strings)[records["thread"]]
        self.own = records["ops"].astype(np.int64) * costs.op if host_times is None else host_times
        spent = self.own + _of_calls(trace, costs)
        for group in range(int(self._groups.max(initial=0)) + 1):
            self._lay_out(group, np.flatnonzero(self._groups == group), spent)
        for number, segment in enumerate(self.segments):
            if segment.after >= 0:
                self.segments[segment.after].next.append(number)

    def _lay_out(self, group: int, positions: Indices, spent: Integers) -> None:
        """A group's segments. Group 0 comes first: others begin when it has come to where they are first seen."""
        if not len(positions):
            self.segments.append(Segment(group, after=-1, offset=-1))
            return
        waits = self._kinds[positions] == RecordKind.SYNCHRONIZE
        segment = np.cumsum(waits) - waits
        total = np.cumsum(spent[positions])
        ends = total[waits]
        begins = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        first = len(self.segments)
        self.segment[positions] = first + segment
        self.offset[positions] = total - begins[segment]
        lengths = np.concatenate((ends, total[-1:])) - begins
        for number, length in enumerate(lengths.tolist()):
            self.segments.append(Segment(group, after=first + number - 1 if number else -1, offset=-1, length=length))
        for number, position in enumerate(positions[waits].tolist()):
            self.ended_by[position] = self.segments[first + number]
            self.segments[first + number].position = position
        if group and positions[0]:
            self._begin_beside_main(self.segments[first], int(positions[0]))

    def _begin_beside_main(self, segment: Segment, position: int) -> None:
        """A thread begins when the main thread is at its last record before the thread's first."""
        before = np.flatnonzero(self._groups[:position] == 0)
        if len(before):
            last = int(before[-1])
            segment.after, segment.offset = int(self.segment[last]), int(self.offset[last])
            if last in self.ended_by:  # it is past that wait
                segment.after, segment.offset = segment.after + 1, 0


def _of_calls(trace: Trace, costs: HostCosts) -> Integers:
    """Of each record, what its call costs the host, but for waiting."""
    records = trace.records
    kinds = records["kind"]
    call = np.zeros(256, dtype=np.int64)
    for kind, ns in costs.calls.items():
        call[kind] = ns
    free = (records["flags"] & Flag.FROM_GRAPH) != 0
    free |= (kinds == RecordKind.COLLECTIVE) & ((records["flags"] & Flag.GROUPED) != 0)
    spent: Integers = np.where(free, 0, call[kinds])
    spent += np.where(kinds == RecordKind.HOST_DELAY, records["value"].astype(np.int64), 0)
    return spent
