"""The host's part of a replay plan: a trace -> segments of its threads, and the position of each record in them."""

from __future__ import annotations

import numpy as np

from maya.replay.replay_plan import Segment
from maya.replay.run_settings import HostCosts
from maya.replay.thread_groups import thread_groups
from maya.trace import Flag, RecordKind, Trace
from maya.util.arrays import Indices, Integers


class HostSegments:
    """For each record: its `segment`; its `offset`, the host cursor after it since the segment began; and `own`, the
    time of the script's own code before it, from `host_times` if they were measured, or else from the cost of ops."""

    def __init__(self, trace: Trace, costs: HostCosts, host_times: Integers | None = None) -> None:
        records = trace.records
        self._kinds = records["kind"]
        self.segment = np.zeros(len(records), dtype=np.int32)
        self.offset = np.zeros(len(records), dtype=np.int64)
        self.segments: list[Segment] = []
        self.ended_by: dict[int, Segment] = {}  # by the position of a synchronisation record
        self._groups = thread_groups(records, trace.strings)[records["thread"]]
        self.own = records["ops"].astype(np.int64) * costs.op if host_times is None else host_times
        spent = self.own + _call_costs(trace, costs)
        for group in range(int(self._groups.max(initial=0)) + 1):
            self._lay_out(group, np.flatnonzero(self._groups == group), spent)
        for number, segment in enumerate(self.segments):
            if segment.after >= 0:
                self.segments[segment.after].next.append(number)

    def _lay_out(self, group: int, positions: Indices, spent: Integers) -> None:
        """Make the segments of a thread group. Group 0 comes first, because the others begin relative to it."""
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
        """Let a thread begin when the main thread reaches its last record before the thread's first one."""
        before = np.flatnonzero(self._groups[:position] == 0)
        if len(before):
            last = int(before[-1])
            segment.after, segment.offset = int(self.segment[last]), int(self.offset[last])
            if last in self.ended_by:  # the main thread is past that wait
                segment.after, segment.offset = segment.after + 1, 0


def _call_costs(trace: Trace, costs: HostCosts) -> Integers:
    """For each record, the cost of its call on the host, without waiting."""
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
