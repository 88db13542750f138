"""What is on the page of a report, as its scripts read it.

In: nothing; `collect` fills it in. Out: `Content.to_json()`, compact and always the same bytes for the same content.
Times are whole nanoseconds, sizes bytes. page/*.js know these names; change both together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

VERSION = 1


@dataclass(frozen=True)
class Figure:
    """One of the numbers at the top."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class TimePart:
    """A part of a step. All parts of a rank add up to its step."""

    key: str  # decides its colour: gemm, attention, ...
    name: str
    meaning: str
    ns: Sequence[int]  # of every rank in the typical step


@dataclass(frozen=True)
class Bar:
    """A rank whose step is drawn as a bar."""

    label: str  # "slowest rank"
    rank: int


@dataclass(frozen=True)
class StepsView:
    """All steps of the run; a run without steps is one."""

    ns: Sequence[int]  # of the median rank
    warm_up: int  # so many at the beginning are left out
    typical: int  # the one that is shown in detail


@dataclass(frozen=True)
class RankClassRow:
    """Ranks that did the same things; one of them is drawn for all."""

    ranks: str  # "0-7"
    count: int
    rank: int  # the one that is drawn


@dataclass(frozen=True)
class Track:
    """A stream. `events` has five numbers for each: ns since the end of the one before, ns it takes, its place in
    `Content.activities`, ns from its launch to its start, ns that the rank waited in it for others."""

    name: str
    events: Sequence[int]


@dataclass(frozen=True)
class StreamsView:
    """What a rank's streams did in a part of the run."""

    rank: int
    first_ns: int  # tracks begin here
    last_ns: int
    steps: Sequence[tuple[int, int]]  # number of a step, and when it ended
    tracks: Sequence[Track]
    joined_ns: int = 0  # neighbours shorter than this were joined to one event, so that the page stays small; 0: none


@dataclass(frozen=True)
class Activity:
    """Something that streams did, and where its duration comes from."""

    name: str
    kind: str  # decides its colour, as Part.key
    detail: str  # op and sizes
    origin: str
    spread: str  # "5 %", or nothing


@dataclass(frozen=True)
class MemoryView:
    """The memory of a rank over time."""

    rank: int
    ns: Sequence[int]
    allocated: Sequence[int]
    reserved: Sequence[int]
    outside: int  # of PyTorch's allocator: context, NCCL, workspaces


@dataclass(frozen=True)
class TrafficView:
    """Bytes sent in the typical step. `entries` has three numbers for each: from, to, bytes."""

    unit: str  # "rank" or "node"
    size: int  # so many rows and columns
    entries: Sequence[int]
    how: str  # what was counted


@dataclass(frozen=True)
class Share:
    """A part of the predicted time by where it comes from."""

    key: str
    name: str
    meaning: str
    ns: int


@dataclass(frozen=True)
class Table:
    """Rows of texts and numbers; `units` has for each column "text", "ns", "bytes", "rate" (bytes a second),
    "count" or "share"."""

    columns: Sequence[str]
    units: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]


@dataclass(frozen=True)
class Content:
    """A report."""

    title: str
    subtitle: str
    figures: Sequence[Figure]
    notes: Sequence[str]  # what a reader has to know before trusting the rest
    steps: StepsView
    parts: Sequence[TimePart]
    hidden_ns: Sequence[int]  # of every rank: communication behind computation, which no part has
    bars: Sequence[Bar]
    why: str  # why the slowest rank is
    ranks_per_node: int
    rank_classes: Sequence[RankClassRow]
    streams: Sequence[StreamsView]
    activities: Sequence[Activity]
    peak_bytes: Sequence[int]  # of every rank, everything
    capacity_bytes: int
    memory: Sequence[MemoryView]
    traffic: TrafficView
    origins: Sequence[Share]
    network_origin: str
    kernels: Table
    collectives: Table
    settings: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))
