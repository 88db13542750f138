"""What ranks of one behaviour do, ready for replay: what a `ReplayPlan` is made of.

The host's part of it is segments: between two waits for the device the host cursor only grows by known amounts, so a
record's host time is that of its segment's beginning plus an offset. The device's part is a queue of items for each
stream.

Nodes are what a stream does one after another, and numbered so that those of a stream are neighbours: works (also
host functions, which take no time), recordings of events, collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from maya.util.arrays import Integers


@dataclass(frozen=True)
class KernelRun:
    """Works and recordings of events on a stream, launched in one segment: nodes first..last-1."""

    first: int
    last: int
    segment: int
    lead: Integers  # of each node: how long after the segment's beginning it starts at the earliest, less `before`
    before: Integers  # durations of the nodes before it in this run
    length: int  # of all, one after another


@dataclass(frozen=True)
class EventWait:
    """For an event: the node that records it; and whose overlap is counted now: collectives on its stream, works on
    this one, as ranges of `ReplayPlan.collectives_on` and `ReplayPlan.kernels_on`."""

    node: int
    stream: int  # of the node
    collectives: range
    kernels: range


@dataclass(frozen=True)
class NcclGroup:
    """Collectives and messages of one NCCL group: nodes first..last-1."""

    first: int
    last: int
    segment: int
    offset: int  # of the host's launch, from the segment's beginning, with the latency
    like: int = -1  # the node of the same group before it, if there is something in between: they arrive together


@dataclass(frozen=True)
class StreamMark:
    """Somebody wants to know when the stream came here."""

    number: int


@dataclass(frozen=True)
class StreamJoin:
    """Not before another stream came to a mark."""

    mark: int
    stream: int  # of the mark


QueueItem = KernelRun | EventWait | NcclGroup | StreamMark | StreamJoin


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
class ReplayPlan:
    """A trace, ready for replay. Positions are those of records in the trace."""

    position: Integers  # of each node
    duration: Integers  # of each node; of a collective 0
    launched: Integers  # of each node, from its segment's beginning
    segment_of: npt.NDArray[np.int32]  # of each node
    collectives: npt.NDArray[np.intp]  # nodes
    queues: dict[int, list[QueueItem]]  # of each stream
    reached_by: dict[int, int]  # of nodes that are waited for: the place of their item in their stream's queue
    mark_at: list[tuple[int, int]]  # of each mark: its stream and its place in the queue
    collectives_on: dict[int, Integers]  # of each stream: nodes
    kernels_on: dict[int, Integers]  # of each stream: nodes that collectives beside them slow down
    segments: list[Segment]
    host_segment: npt.NDArray[np.int32]  # of each record
    host_offset: Integers  # of each record: host cursor after it, from its segment's beginning
    host_own: Integers  # of each record: what the program's own code took before it
    streams: Integers  # of each node

    def stream_of(self, node: int) -> int:
        return int(self.streams[node])
