"""`ReplayPlan`: the operations of a rank class, compiled for replay.

The host's part consists of segments: between two waits for the device the host cursor grows by known amounts only, so a
record's host time is the beginning of its segment plus an offset. The device's part is a queue of items for each
stream.

A node is an operation on a stream: a kernel (or a host function, which takes no time), an event record, or a
collective. The nodes of a stream have consecutive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from maya.util.arrays import Integers


@dataclass(frozen=True)
class KernelRun:
    """Kernels and event records on a stream, launched in one segment: nodes first..last-1."""

    first: int
    last: int
    segment: int
    lead: Integers  # for each node, its earliest start after the segment's beginning, minus `before`
    before: Integers  # for each node, the sum of durations before it in this run
    length: int  # sum of all durations


@dataclass(frozen=True)
class EventWait:
    """A stream waits for an event: the node that records it. At this point the overlap of collectives on that stream
    with kernels on this one is counted: ranges of `ReplayPlan.collectives_on` and `ReplayPlan.kernels_on`."""

    node: int
    stream: int  # of the node
    collectives: range
    kernels: range


@dataclass(frozen=True)
class NcclGroup:
    """Collectives, sends and recvs of one NCCL group: nodes first..last-1."""

    first: int
    last: int
    segment: int
    offset: int  # of the host's launch, from the segment's beginning, with the latency
    like: int = -1  # the node before it in the same group, if other items are in between: they arrive together


@dataclass(frozen=True)
class StreamMark:
    """A position in the queue whose time something else waits for."""

    number: int


@dataclass(frozen=True)
class StreamJoin:
    """The stream waits until another stream reaches a mark."""

    mark: int
    stream: int  # of the mark


QueueItem = KernelRun | EventWait | NcclGroup | StreamMark | StreamJoin


@dataclass(frozen=True)
class Synchronise:
    """The end of a segment: the host waits for a recorded event, or for streams to reach marks."""

    offset: int  # of the call, from the segment's beginning
    node: int = -1
    marks: tuple[int, ...] = ()


@dataclass
class Segment:
    """A stretch of a host thread without waits, except at its end."""

    group: int
    after: int  # the segment after which it begins; -1: at time 0
    offset: int  # of a thread's first segment: time since the beginning of `after`; -1: after the wait of `after`
    position: int = -1  # of the record that ends it
    wait: Synchronise | None = None
    length: int = 0  # to its last record
    next: list[int] = field(default_factory=list)  # segments that begin inside it or after it


@dataclass
class ReplayPlan:
    """A trace, compiled for replay. Positions are those of records in the trace."""

    position: Integers  # for each node
    duration: Integers  # for each node; 0 for a collective
    launched: Integers  # for each node, from its segment's beginning
    segment_of: npt.NDArray[np.int32]  # for each node
    collectives: npt.NDArray[np.intp]  # nodes
    queues: dict[int, list[QueueItem]]  # for each stream
    reached_by: dict[int, int]  # node that something waits for -> place of its item in the stream's queue
    mark_at: list[tuple[int, int]]  # for each mark, its stream and its place in the queue
    collectives_on: dict[int, Integers]  # for each stream: nodes
    kernels_on: dict[int, Integers]  # for each stream: nodes that overlapping collectives slow down
    segments: list[Segment]
    host_segment: npt.NDArray[np.int32]  # for each record
    host_offset: Integers  # for each record: host cursor after it, from its segment's beginning
    host_own: Integers  # for each record: time of the script's own code before it
    streams: Integers  # for each node

    def stream_of(self, node: int) -> int:
        return int(self.streams[node])
