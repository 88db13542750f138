"""What ranks of one behaviour do, made ready for replay: a trace -> a `Course`.

The host's part of it is segments: between two waits for the device the host cursor only grows by known amounts, so a
record's host time is that of its segment's beginning plus an offset. The device's part is a queue of items for each
stream. Which event a wait means, what a synchronisation waits for and which collectives an overlap is counted with
follow from the order of the records alone, so all of it is worked out here, once for all ranks.

Nodes are what a stream does one after another, and numbered so that those of a stream are neighbours: works (also
host functions, which take no time), recordings of events, collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from coordinator.timeline.settings import HostCosts
from coordinator.timeline.threads import thread_groups
from maya.trace import Flag, Kind, Trace

Integers = npt.NDArray[np.int64]

_WORKS = (Kind.KERNEL, Kind.LIBRARY, Kind.MEMCPY, Kind.MEMSET)
_SLOWED = (Kind.KERNEL, Kind.LIBRARY, Kind.MEMSET)  # by collectives that run beside them
_NODES = (*_WORKS, Kind.HOST_FUNCTION, Kind.EVENT_RECORD, Kind.COLLECTIVE)
_OVERLAP_WORKS = 2048  # the last works of a stream that an overlap is looked for in


@dataclass(frozen=True)
class Run:
    """Works and recordings of events on a stream, launched in one segment: nodes first..last-1."""

    first: int
    last: int
    segment: int
    lead: Integers  # of each node: how long after the segment's beginning it starts at the earliest, less `before`
    before: Integers  # durations of the nodes before it in this run
    length: int  # of all, one after another


@dataclass(frozen=True)
class Wait:
    """For an event: the node that records it; and whose overlap is counted now: collectives on its stream, works on
    this one, as ranges of `Course.collectives_on` and `Course.works_on`."""

    node: int
    stream: int  # of the node
    collectives: range
    works: range


@dataclass(frozen=True)
class Meet:
    """Collectives and messages of one NCCL group: nodes first..last-1."""

    first: int
    last: int
    segment: int
    offset: int  # of the host's launch, from the segment's beginning, with the latency
    like: int = -1  # the node of the same group before it, if there is something in between: they arrive together


@dataclass(frozen=True)
class Mark:
    """Somebody wants to know when the stream came here."""

    number: int


@dataclass(frozen=True)
class Join:
    """Not before another stream came to a mark."""

    mark: int
    stream: int  # of the mark


Item = Run | Wait | Meet | Mark | Join


@dataclass(frozen=True)
class Synchronise:
    """The end of a segment: the host waits for a recorded event, or for streams to come to marks."""

    offset: int  # of the call, from the segment's beginning
    node: int = -1
    marks: tuple[int, ...] = ()


@dataclass
class Segment:
    """A stretch of a host thread that waits for nothing but at its end."""

    group: int
    after: int  # the segment after which it begins; -1: at time 0
    offset: int  # for the first of a thread: how long after the beginning of `after`; -1: when its wait is over
    position: int = -1  # of the record that ends it
    wait: Synchronise | None = None
    length: int = 0  # to its last record
    next: list[int] = field(default_factory=list)  # segments that begin in it or after it


@dataclass
class Course:
    """A trace, ready for replay. Positions are those of records in the trace."""

    position: Integers  # of each node
    duration: Integers  # of each node; of a collective 0
    launched: Integers  # of each node, from its segment's beginning
    segment_of: npt.NDArray[np.int32]  # of each node
    collectives: npt.NDArray[np.intp]  # nodes
    queues: dict[int, list[Item]]  # of each stream
    reached_by: dict[int, int]  # of nodes that are waited for: the place of their item in their stream's queue
    mark_at: list[tuple[int, int]]  # of each mark: its stream and its place in the queue
    collectives_on: dict[int, Integers]  # of each stream: nodes
    works_on: dict[int, Integers]  # of each stream: nodes that collectives beside them slow down
    segments: list[Segment]
    host_segment: npt.NDArray[np.int32]  # of each record
    host_offset: Integers  # of each record: host cursor after it, from its segment's beginning
    streams: Integers  # of each node

    def stream_of(self, node: int) -> int:
        return int(self.streams[node])


def compile_course(trace: Trace, durations: Integers, costs: HostCosts) -> Course:
    """`durations` has a value for each record of the trace; those of works count."""
    return _Compiler(trace, durations, costs).course()


class _Compiler:
    def __init__(self, trace: Trace, durations: Integers, costs: HostCosts) -> None:
        self.trace = trace
        self.records = trace.records
        self.kinds = self.records["kind"]
        self.costs = costs
        self.births = is_birth(trace)
        self._lay_out_host()
        self._lay_out_nodes(durations)
        self.queues: dict[int, list[Item]] = {stream: [] for stream in self.stream_ids}
        self.marks: list[tuple[int, int]] = []
        self.reached_by: dict[int, int] = {}

    # ---- the host ----

    def _lay_out_host(self) -> None:
        records, costs = self.records, self.costs
        call = np.zeros(256, dtype=np.int64)
        for kind, ns in costs.calls.items():
            call[kind] = ns
        free = (records["flags"] & Flag.FROM_GRAPH) != 0
        free |= (self.kinds == Kind.COLLECTIVE) & ((records["flags"] & Flag.GROUPED) != 0)
        spent = np.where(free, 0, call[self.kinds]) + records["ops"].astype(np.int64) * costs.op
        spent += np.where(self.kinds == Kind.HOST_DELAY, records["value"].astype(np.int64), 0)
        self.host_segment = np.zeros(len(records), dtype=np.int32)
        self.host_offset = np.zeros(len(records), dtype=np.int64)
        self.segments: list[Segment] = []
        self.waits: dict[int, int] = {}  # position of a synchronisation -> segment that it ends
        groups = self.groups = thread_groups(records, self.trace.strings)[records["thread"]]
        for group in range(int(groups.max(initial=0)) + 1):
            self._lay_out_group(group, np.flatnonzero(groups == group), spent)
        for number, segment in enumerate(self.segments):
            if segment.after >= 0:
                self.segments[segment.after].next.append(number)

    def _lay_out_group(self, group: int, positions: npt.NDArray[np.intp], spent: Integers) -> None:
        """A group's segments. Group 0 comes first: others begin when it has come to where they are first seen."""
        if not len(positions):
            self.segments.append(Segment(group, after=-1, offset=-1))
            return
        waits = self.kinds[positions] == Kind.SYNCHRONIZE
        segment = np.cumsum(waits) - waits
        total = np.cumsum(spent[positions])
        ends = total[waits]
        begins = np.concatenate((np.zeros(1, dtype=np.int64), ends))
        first = len(self.segments)
        self.host_segment[positions] = first + segment
        self.host_offset[positions] = total - begins[segment]
        lengths = np.concatenate((ends, total[-1:])) - begins
        for number, length in enumerate(lengths.tolist()):
            self.segments.append(Segment(group, after=first + number - 1 if number else -1, offset=-1, length=length))
        for number, position in enumerate(positions[waits].tolist()):
            self.waits[position] = first + number
            self.segments[first + number].position = position
        if group and positions[0]:
            self._begin_beside_main(self.segments[first], int(positions[0]))

    def _begin_beside_main(self, segment: Segment, position: int) -> None:
        """A thread begins when the main thread is at its last record before the thread's first."""
        before = np.flatnonzero(self.groups[:position] == 0)
        if len(before):
            segment.after = int(self.host_segment[before[-1]])
            segment.offset = int(self.host_offset[before[-1]])
            if int(before[-1]) in self.waits:  # it is past that wait
                segment.after, segment.offset = segment.after + 1, 0

    # ---- the device ----

    def _lay_out_nodes(self, durations: Integers) -> None:
        chosen = np.isin(self.kinds, np.array(_NODES, dtype=np.uint8)) & ~self.births
        positions = np.flatnonzero(chosen)
        streams = self.records["stream"][positions]
        order = np.argsort(streams, kind="stable")
        self.position = positions[order].astype(np.int64)
        self.node_of = np.full(len(self.records), -1, dtype=np.int64)
        self.node_of[self.position] = np.arange(len(order))
        kinds = self.kinds[self.position]
        self.is_collective = kinds == Kind.COLLECTIVE
        takes_time = np.isin(kinds, np.array(_WORKS, dtype=np.uint8))
        self.duration = np.where(takes_time, durations[self.position], 0)
        self.launched = self.host_offset[self.position]
        self.segment_of = self.host_segment[self.position]
        node_streams = self.records["stream"][self.position]
        slowed = np.isin(kinds, np.array(_SLOWED, dtype=np.uint8))
        all_streams = self.records["stream"][chosen | (self.kinds == Kind.STREAM_WAIT)]
        self.stream_ids: list[int] = np.unique(all_streams).tolist()
        self.collectives_on: dict[int, Integers] = {}
        self.works_on: dict[int, Integers] = {}
        for stream in self.stream_ids:
            on_stream = node_streams == stream
            self.collectives_on[stream] = np.flatnonzero(on_stream & self.is_collective).astype(np.int64)
            self.works_on[stream] = np.flatnonzero(on_stream & slowed).astype(np.int64)

    def course(self) -> Course:
        self._fill_queues()
        return Course(
            position=self.position,
            duration=self.duration,
            launched=self.launched,
            segment_of=self.segment_of,
            collectives=np.flatnonzero(self.is_collective),
            queues=self.queues,
            reached_by=self.reached_by,
            mark_at=self.marks,
            collectives_on=self.collectives_on,
            works_on=self.works_on,
            segments=self.segments,
            host_segment=self.host_segment,
            host_offset=self.host_offset,
            streams=self.records["stream"][self.position].astype(np.int64),
        )

    def _fill_queues(self) -> None:
        """Goes through what is not a plain work in the order of the file. The works before it on its stream form runs
        when something else comes: `self.filled` is how far the nodes of a stream are in its queue."""
        first_node: dict[int, int] = {}
        streams = self.records["stream"][self.position]
        for stream in self.stream_ids:
            first_node[stream] = int(np.searchsorted(streams, stream))
        self.filled = dict(first_node)
        self.end_of = {stream: int(np.searchsorted(streams, stream, side="right")) for stream in self.stream_ids}
        self.settled: dict[tuple[int, int], int] = {}
        self.recorded: dict[int, int] = {}  # event -> node
        blocking = self._blocking_streams()
        self.joined: dict[tuple[int, int], int] = {}  # (of, to): nodes of `of` that `to` has waited for
        special = (self.kinds == Kind.STREAM_WAIT) | (self.kinds == Kind.SYNCHRONIZE)
        special |= (self.kinds == Kind.COLLECTIVE) & ~self.births
        special |= self.kinds == Kind.EVENT_RECORD
        if blocking:
            special |= np.isin(self.records["stream"], np.array([0, *blocking])) & (self.node_of >= 0)
        for position in np.flatnonzero(special).tolist():
            kind = int(self.kinds[position])
            stream = int(self.records["stream"][position])
            node = int(self.node_of[position])
            if blocking and kind not in (Kind.STREAM_WAIT, Kind.SYNCHRONIZE, Kind.COLLECTIVE):
                self._join_default_stream(stream, node, blocking)
            if kind == Kind.EVENT_RECORD:
                self.recorded[int(self.records["value"][position])] = node
            elif kind == Kind.STREAM_WAIT:
                self._add_wait(stream, position)
            elif kind == Kind.COLLECTIVE:
                self._add_collective(stream, node)
            elif kind == Kind.SYNCHRONIZE:
                self._add_synchronise(stream, position, blocking)
        for stream in self.stream_ids:
            self._add_runs(stream, self.end_of[stream])
        for stream, items in self.queues.items():
            self._find_items_of_nodes(stream, items)

    def _blocking_streams(self) -> list[int]:
        made = self.trace.select(Kind.STREAM_CREATE)
        return [
            int(record["stream"])
            for record in made
            if record["signature"] and self.trace.signature(int(record["signature"])).get("blocking")
        ]

    def _next_node(self, stream: int, position: int) -> int:
        """The first node on a stream that comes after a position."""
        first, last = self.filled[stream], self.end_of[stream]
        return first + int(np.searchsorted(self.position[first:last], position))

    def _add_runs(self, stream: int, until: int) -> None:
        """The works and recordings of a stream up to a node, a run for each segment."""
        first = self.filled[stream]
        if first >= until:
            return
        cuts = np.flatnonzero(np.diff(self.segment_of[first:until])) + first + 1
        edges = [first, *cuts.tolist(), until]
        for begin, end in pairwise(edges):
            total = np.cumsum(self.duration[begin:end])
            before = total - self.duration[begin:end]
            lead = np.maximum.accumulate(self.launched[begin:end] + self.costs.latency - before)
            self.queues[stream].append(Run(begin, end, int(self.segment_of[begin]), lead, before, int(total[-1])))
        self.filled[stream] = until

    def _add_wait(self, stream: int, position: int) -> None:
        node = self.recorded.get(int(self.records["value"][position]))
        if node is None:
            return
        of = int(self.records["stream"][self.position[node]])
        if of == stream:
            return
        self._add_runs(stream, self._next_node(stream, position))
        seen = int(np.searchsorted(self.collectives_on[of], node))
        settled = self.settled.get((stream, of), 0)
        works = int(np.searchsorted(self.works_on[stream], self.filled[stream]))
        self.settled[stream, of] = max(seen, settled)
        self.reached_by[node] = -1
        self.queues[stream].append(Wait(node, of, range(settled, seen), range(max(0, works - _OVERLAP_WORKS), works)))

    def _add_collective(self, stream: int, node: int) -> None:
        self._add_runs(stream, node)
        grouped = self.records["flags"][self.position[node]] & Flag.GROUPED
        before = self.queues[stream][-1] if self.queues[stream] else None
        if grouped and isinstance(before, Meet) and before.last == node:
            self.queues[stream][-1] = replace(before, last=node + 1)
        else:
            ready = int(self.launched[node]) + self.costs.latency
            others = self.collectives_on[stream]
            at = int(np.searchsorted(others, node))
            like = int(others[at - 1]) if grouped and at else -1
            self.queues[stream].append(Meet(node, node + 1, int(self.segment_of[node]), ready, like))
        self.filled[stream] = node + 1

    def _mark(self, stream: int, position: int) -> int:
        """A mark where a stream is at a position of the file."""
        self._add_runs(stream, self._next_node(stream, position))
        queue = self.queues[stream]
        if queue and isinstance(last := queue[-1], Mark):
            return last.number
        number = len(self.marks)
        self.marks.append((stream, len(queue)))
        queue.append(Mark(number))
        return number

    def _join_default_stream(self, stream: int, node: int, blocking: Sequence[int]) -> None:
        """The default stream's work waits for the blocking streams, and theirs for it."""
        others = blocking if stream == 0 else [0] if stream in blocking else []
        for other in others:
            if other not in self.queues:
                continue
            position = int(self.position[node])
            there = self._next_node(other, position)
            if there == self.joined.get((other, stream), self._first(other)) and not self._waited_since(other):
                continue
            self.joined[other, stream] = there
            mark = self._mark(other, position)
            self._add_runs(stream, node)
            self.queues[stream].append(Join(mark, other))

    def _first(self, stream: int) -> int:
        return int(np.searchsorted(self.records["stream"][self.position], stream))

    def _waited_since(self, stream: int) -> bool:
        return bool(self.queues[stream]) and isinstance(self.queues[stream][-1], Wait | Join)

    def _add_synchronise(self, stream: int, position: int, blocking: Sequence[int]) -> None:
        segment = self.segments[self.waits[position]]
        what = self.trace.signature(int(self.records["signature"][position])).get("wait")
        node = -1
        marks: tuple[int, ...] = ()
        if what == "event":
            node = self.recorded.get(int(self.records["value"][position]), -1)
            if node >= 0:
                self.reached_by[node] = -1
        else:
            streams = self.stream_ids if what == "device" else [stream, *(blocking if stream == 0 else ())]
            marks = tuple(self._mark(each, position) for each in streams if each in self.queues)
        segment.wait = Synchronise(int(self.host_offset[position]), node, marks)

    def _find_items_of_nodes(self, stream: int, items: Sequence[Item]) -> None:
        wanted = sorted(node for node in self.reached_by if int(self.records["stream"][self.position[node]]) == stream)
        at = 0
        for place, item in enumerate(items):
            if isinstance(item, Run | Meet):
                while at < len(wanted) and wanted[at] < item.last:
                    self.reached_by[wanted[at]] = place
                    at += 1


def is_birth(trace: Trace) -> npt.NDArray[np.bool_]:
    """Of each record: whether it says who is in a communicator."""
    records = trace.records
    collective = records["kind"] == Kind.COLLECTIVE
    births = [
        number
        for number in np.unique(records["signature"][collective]).tolist()
        if "members" in trace.signature(number)
    ]
    found: npt.NDArray[np.bool_] = collective & np.isin(records["signature"], np.array(births, dtype=np.uint32))
    return found
