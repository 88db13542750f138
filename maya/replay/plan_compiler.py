"""Compile a trace into its `ReplayPlan`.

The event of each wait, the target of each synchronisation and the collectives of each overlap follow from the order of
the records alone, so they are resolved here, once for all ranks of a class.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from maya.replay.host_segments import HostSegments
from maya.replay.record_kinds import KERNEL_KINDS, is_comm_init
from maya.replay.replay_plan import (
    EventWait,
    KernelRun,
    NcclGroup,
    QueueItem,
    ReplayPlan,
    StreamJoin,
    StreamMark,
    Synchronise,
)
from maya.replay.run_settings import HostCosts
from maya.trace import Flag, RecordKind, Trace
from maya.trace.streams import find_streams
from maya.util.arrays import Integers

_SLOWED = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMSET)  # by overlapping collectives
_NODES = (*KERNEL_KINDS, RecordKind.HOST_FUNCTION, RecordKind.EVENT_RECORD, RecordKind.COLLECTIVE)
_OVERLAP_KERNELS = 2048  # the last kernels of a stream in which an overlap is searched


def compile_plan(trace: Trace, durations: Integers, costs: HostCosts, host_times: Integers | None = None) -> ReplayPlan:
    """`durations` has a value for each record of the trace, used for kernels. `host_times`, if given, has a measured
    host time for each record, used instead of the cost of ops."""
    return _Compiler(trace, durations, costs, host_times).plan()


class _Compiler:
    def __init__(self, trace: Trace, durations: Integers, costs: HostCosts, host_times: Integers | None) -> None:
        self.trace = trace
        self.records = trace.records
        self.kinds = self.records["kind"]
        self.costs = costs
        self.comm_inits = is_comm_init(trace)
        self.made = find_streams(trace)
        self.host = HostSegments(trace, costs, host_times)
        self._lay_out_nodes(durations)
        self.queues: dict[int, list[QueueItem]] = {stream: [] for stream in self.stream_ids}
        self.marks: list[tuple[int, int]] = []
        self.reached_by: dict[int, int] = {}

    def _lay_out_nodes(self, durations: Integers) -> None:
        chosen = np.isin(self.kinds, np.array(_NODES, dtype=np.uint8)) & ~self.comm_inits
        positions = np.flatnonzero(chosen)
        streams = self.records["stream"][positions]
        order = np.argsort(streams, kind="stable")
        self.position = positions[order].astype(np.int64)
        self.node_of = np.full(len(self.records), -1, dtype=np.int64)
        self.node_of[self.position] = np.arange(len(order))
        kinds = self.kinds[self.position]
        self.is_collective = kinds == RecordKind.COLLECTIVE
        takes_time = np.isin(kinds, np.array(KERNEL_KINDS, dtype=np.uint8))
        self.duration = np.where(takes_time, durations[self.position], 0)
        self.launched = self.host.offset[self.position]
        self.segment_of = self.host.segment[self.position]
        self.streams = self.records["stream"][self.position].astype(np.int64)
        slowed = np.isin(kinds, np.array(_SLOWED, dtype=np.uint8))
        all_streams = self.records["stream"][chosen | (self.kinds == RecordKind.STREAM_WAIT)]
        self.stream_ids: list[int] = np.unique(all_streams).tolist()
        self.collectives_on: dict[int, Integers] = {}
        self.kernels_on: dict[int, Integers] = {}
        for stream in self.stream_ids:
            on_stream = self.streams == stream
            self.collectives_on[stream] = np.flatnonzero(on_stream & self.is_collective).astype(np.int64)
            self.kernels_on[stream] = np.flatnonzero(on_stream & slowed).astype(np.int64)

    def plan(self) -> ReplayPlan:
        self._fill_queues()
        return ReplayPlan(
            position=self.position,
            duration=self.duration,
            launched=self.launched,
            segment_of=self.segment_of,
            collectives=np.flatnonzero(self.is_collective),
            queues=self.queues,
            reached_by=self.reached_by,
            mark_at=self.marks,
            collectives_on=self.collectives_on,
            kernels_on=self.kernels_on,
            segments=self.host.segments,
            host_segment=self.host.segment,
            host_offset=self.host.offset,
            host_own=self.host.own,
            streams=self.streams,
        )

    def _fill_queues(self) -> None:
        """Go through the records other than kernels in the order of the file. Each closes the run of kernels before it
        on its stream; `self.filled` is the first node of each stream that is not in the queue yet."""
        self.filled = {stream: int(np.searchsorted(self.streams, stream)) for stream in self.stream_ids}
        self.end_of = {stream: int(np.searchsorted(self.streams, stream + 1)) for stream in self.stream_ids}
        self.settled: dict[tuple[int, int], int] = {}
        self.recorded: dict[int, int] = {}  # event -> node
        blocking = self.made.blocking
        self.joined: dict[tuple[int, int], int] = {}  # (of, to): the last mark of `of` that `to` has waited for
        special = (self.kinds == RecordKind.STREAM_WAIT) | (self.kinds == RecordKind.SYNCHRONIZE)
        special |= (self.kinds == RecordKind.COLLECTIVE) & ~self.comm_inits
        special |= self.kinds == RecordKind.EVENT_RECORD
        if blocking:
            homes = {self.made.home(stream) for stream in blocking}
            special |= np.isin(self.records["stream"], np.array([*homes, *blocking])) & (self.node_of >= 0)
        for position in np.flatnonzero(special).tolist():
            kind = int(self.kinds[position])
            stream = int(self.records["stream"][position])
            node = int(self.node_of[position])
            if blocking and kind not in (RecordKind.STREAM_WAIT, RecordKind.SYNCHRONIZE, RecordKind.COLLECTIVE):
                self._join_default_stream(stream, node)
            if kind == RecordKind.EVENT_RECORD:
                self.recorded[int(self.records["value"][position])] = node
            elif kind == RecordKind.STREAM_WAIT:
                self._add_wait(stream, position)
            elif kind == RecordKind.COLLECTIVE:
                self._add_collective(stream, node)
            elif kind == RecordKind.SYNCHRONIZE:
                self._add_synchronise(stream, position)
        for stream in self.stream_ids:
            self._add_runs(stream, self.end_of[stream])
        self._find_items_of_nodes()

    def _next_node(self, stream: int, position: int) -> int:
        """The first node on a stream after a position."""
        first, last = self.filled[stream], self.end_of[stream]
        return first + int(np.searchsorted(self.position[first:last], position))

    def _add_runs(self, stream: int, until: int) -> None:
        """Add the kernels and event records of a stream up to a node, one run for each segment."""
        first = self.filled[stream]
        if first >= until:
            return
        cuts = np.flatnonzero(np.diff(self.segment_of[first:until])) + first + 1
        edges = [first, *cuts.tolist(), until]
        for begin, end in pairwise(edges):
            total = np.cumsum(self.duration[begin:end])
            before = total - self.duration[begin:end]
            lead = np.maximum.accumulate(self.launched[begin:end] + self.costs.latency - before)
            self.queues[stream].append(KernelRun(begin, end, int(self.segment_of[begin]), lead, before, int(total[-1])))
        self.filled[stream] = until

    def _add_wait(self, stream: int, position: int) -> None:
        node = self.recorded.get(int(self.records["value"][position]))
        if node is None:
            return
        of = int(self.streams[node])
        if of == stream:
            return
        self._add_runs(stream, self._next_node(stream, position))
        seen = int(np.searchsorted(self.collectives_on[of], node))
        settled = self.settled.get((stream, of), 0)
        kernels = int(np.searchsorted(self.kernels_on[stream], self.filled[stream]))
        self.settled[stream, of] = max(seen, settled)
        self.reached_by[node] = -1
        self.queues[stream].append(
            EventWait(node, of, range(settled, seen), range(max(0, kernels - _OVERLAP_KERNELS), kernels))
        )

    def _add_collective(self, stream: int, node: int) -> None:
        self._add_runs(stream, node)
        grouped = self.records["flags"][self.position[node]] & Flag.GROUPED
        before = self.queues[stream][-1] if self.queues[stream] else None
        if grouped and isinstance(before, NcclGroup) and before.last == node:
            self.queues[stream][-1] = replace(before, last=node + 1)
        else:
            ready = int(self.launched[node]) + self.costs.latency
            others = self.collectives_on[stream]
            at = int(np.searchsorted(others, node))
            like = int(others[at - 1]) if grouped and at else -1
            self.queues[stream].append(NcclGroup(node, node + 1, int(self.segment_of[node]), ready, like))
        self.filled[stream] = node + 1

    def _mark(self, stream: int, position: int) -> int:
        """Add a mark where a stream is at a position of the file."""
        self._add_runs(stream, self._next_node(stream, position))
        queue = self.queues[stream]
        if queue and isinstance(last := queue[-1], StreamMark):
            return last.number
        number = len(self.marks)
        self.marks.append((stream, len(queue)))
        queue.append(StreamMark(number))
        return number

    def _join_default_stream(self, stream: int, node: int) -> None:
        """The default stream waits for the blocking streams of its device, and they wait for it."""
        home = self.made.home(stream)
        waits = stream in self.made.blocking
        for other in self.made.beside(stream) if stream == home else [home] if waits else []:
            if other not in self.queues:
                continue
            mark = self._mark(other, int(self.position[node]))
            if self.joined.get((other, stream)) != mark:
                self.joined[other, stream] = mark
                self._add_runs(stream, node)
                self.queues[stream].append(StreamJoin(mark, other))

    def _add_synchronise(self, stream: int, position: int) -> None:
        segment = self.host.ended_by[position]
        what = self.trace.signature(int(self.records["signature"][position])).get("wait")
        node = -1
        marks: tuple[int, ...] = ()
        if what == "event":
            node = self.recorded.get(int(self.records["value"][position]), -1)
            if node >= 0:
                self.reached_by[node] = -1
        else:
            if what == "device":
                streams = [each for each in self.stream_ids if self.made.home(each) == stream]
            else:
                streams = [stream, *self.made.beside(stream)]
            marks = tuple(self._mark(each, position) for each in streams if each in self.queues)
        segment.wait = Synchronise(int(self.host.offset[position]), node, marks)

    def _find_items_of_nodes(self) -> None:
        """Find the place in its stream's queue of each node that something waits for."""
        wanted = np.array(sorted(self.reached_by), dtype=np.int64)
        for items in self.queues.values():
            for place, item in enumerate(items):
                if isinstance(item, KernelRun | NcclGroup):
                    first, last = np.searchsorted(wanted, (item.first, item.last)).tolist()
                    for node in wanted[first:last].tolist():
                        self.reached_by[node] = place
