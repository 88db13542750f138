"""What a simulation finds out: when everything started and ended, on every rank.

Ranks whose traces say the same (but for the communicators' members and the times of this machine) have one behaviour:
they share a `Program`. Those of them that also did everything at the same times share a `GroupTimeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.devices import Device
from maya.estimators.features.from_trace import TracedKernel
from maya.estimators.kernel import Estimate
from maya.replay.run_settings import RunSettings
from maya.trace import Trace

Times = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class CollectiveCall:
    """A distinct collective or message call of a program, as its signature says it."""

    call: str  # "ncclAllReduce", ...
    communicator: int  # number in the trace of the program
    count: int
    dtype: str
    size: int  # bytes, as netmodel.Collective counts them
    peer: int  # root or peer, by its place in the communicator; -1: none
    shared_bytes: int = 0  # of messages
    place: int = -1  # of messages: of the rank itself in the communicator


@dataclass(frozen=True, eq=False)
class Program:
    """What ranks of one behaviour did."""

    trace: Trace  # of the first of them
    records: Index  # positions in trace.records of what occupies a stream: kernels, library calls, copies, memsets,
    # collectives and messages, in order
    works: Sequence[TracedKernel]
    estimates: Sequence[Estimate]  # of the works
    work: npt.NDArray[np.int32]  # of each of `records`, the position in `works`; -1: a collective
    calls: Sequence[CollectiveCall]
    call: npt.NDArray[np.int32]  # of each of `records`, the position in `calls`; -1: no collective


@dataclass(frozen=True, eq=False)
class GroupTimeline:
    """Ranks of one behaviour that did everything at the same times. Arrays have a row for each of program.records and a
    column for each rank; all columns are the same, and the same memory: whoever looks at one has seen all."""

    ranks: npt.NDArray[np.int32]  # of the job, ascending
    program: Program
    launched_ns: Times  # host cursor when it was launched
    start_ns: Times  # of a collective: when the last member came
    end_ns: Times
    arrival_ns: Times  # of a collective: when this rank came; of others start_ns
    # What was never reached, because the job stood still or a trace is cut short, starts and ends when the rank ends.
    reached: npt.NDArray[np.bool_]  # of each row
    communicators: Sequence[dict[int, tuple[int, ...]]]  # for each rank: number in its trace -> ranks of the job


@dataclass(frozen=True, eq=False)
class RankDetail:
    """One rank in full: the host cursor after every record of its program's trace."""

    rank: int
    trace: Trace  # that of its program: of a rank that did the same
    host_ns: Times
    own_ns: Times  # of that, what the program's own code took before each record, without the record's call


@dataclass(frozen=True, eq=False)
class Timeline:
    """A whole job."""

    settings: RunSettings
    device: Device
    classes: Sequence[GroupTimeline]
    details: dict[int, RankDetail]  # of the ranks that were asked for
    end_ns: npt.NDArray[np.int64]  # of every rank, when its last work or host call ended; 0 without a trace
    host_end_ns: npt.NDArray[np.int64]  # of every rank, its main thread's clock at the end
    network_origin: str  # of the network's parameters
    problems: Sequence[str] = ()  # traces that are cut short, collectives that never came about: one sentence each

    @property
    def programs(self) -> list[Program]:
        """The distinct behaviours, in the order of their first ranks."""
        return list({id(part.program): part.program for part in self.classes}.values())

    @property
    def world_size(self) -> int:
        return self.settings.world_size
