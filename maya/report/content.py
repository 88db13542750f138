"""The content of a report's page, as its scripts read it.

`collect` fills it in. Out: `Content.to_json()`, compact, and the same bytes for the same content. Times are integer
nanoseconds, sizes bytes. page/*.js use these names; change both together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

VERSION = 1
_PER_RANK = ("ns", "hidden_ns", "peak_bytes")  # lists with a number for each rank
_MOST_PLAIN = 4096  # of more numbers, those that are equal in a row are written once


@dataclass(frozen=True)
class Figure:
    """One of the numbers at the top."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class TimePart:
    """A time class. All of a rank add up to its step."""

    key: str  # decides its colour: gemm, attention, ...
    name: str
    meaning: str
    ns: Sequence[int]  # for every rank: mean over the measured steps


@dataclass(frozen=True)
class Bar:
    """A rank whose step is drawn as a bar."""

    label: str  # "slowest"
    rank: int


@dataclass(frozen=True)
class StepsView:
    """All steps of the run. A run without steps counts as one step."""

    ns: Sequence[int]  # length of each step of the job
    warm_up: int  # number of steps at the beginning that are left out
    typical: int  # the step that is shown in detail


@dataclass(frozen=True)
class RankClassRow:
    """A rank class. One of its ranks is shown for all."""

    ranks: str  # "0-7"
    count: int
    rank: int  # the rank that is shown


@dataclass(frozen=True)
class Track:
    """A stream. `events` has five numbers for each event: ns since the end of the event before, its duration in ns, its
    position in `Content.activities`, ns from its launch to its start, ns that the rank waited in it for other ranks."""

    name: str
    events: Sequence[int]


@dataclass(frozen=True)
class StreamsView:
    """The streams of a rank during a few steps."""

    rank: int
    first_ns: int  # start of the tracks
    last_ns: int
    steps: Sequence[tuple[int, int]]  # number of a step, and when it ended
    tracks: Sequence[Track]
    joined_ns: int = 0  # adjacent events shorter than this were joined into one to keep the page small; 0: none


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or collective on a stream, and the origin of its duration."""

    name: str
    kind: str  # decides its colour, as TimePart.key does
    detail: str  # op and sizes
    origin: str
    spread: str  # "5 %", or empty


@dataclass(frozen=True)
class MemoryView:
    """The memory of a rank over time."""

    rank: int
    ns: Sequence[int]
    allocated: Sequence[int]
    reserved: Sequence[int]
    outside: int  # not from PyTorch's allocator: context, NCCL, workspaces


@dataclass(frozen=True)
class TrafficView:
    """Bytes sent in a step. `entries` has three numbers for each entry: from, to, bytes."""

    unit: str  # "rank", "node" or "block"
    size: int  # number of rows and columns
    entries: Sequence[int]
    how: str  # how bytes were counted


@dataclass(frozen=True)
class MeshDimension:
    """A dimension of the mesh that the job's communicators form: the coordinate of a rank is rank // stride % size."""

    size: int
    stride: int


@dataclass(frozen=True)
class Share:
    """A share of the predicted time, by origin."""

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
    notes: Sequence[str]  # a reader must know them before the numbers
    steps: StepsView
    parts: Sequence[TimePart]
    hidden_ns: Sequence[int]  # for every rank: hidden communication, which is in no part
    bars: Sequence[Bar]
    why: str  # the straggler and the reason
    ranks_per_node: int
    rank_classes: Sequence[RankClassRow]
    streams: Sequence[StreamsView]
    activities: Sequence[Activity]
    peak_bytes: Sequence[int]  # for every rank, the peak in total
    capacity_bytes: int
    memory: Sequence[MemoryView]
    traffic: TrafficView
    origins: Sequence[Share]
    network_origin: str
    kernels: Table
    collectives: Table
    settings: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    mesh: Sequence[MeshDimension] = ()  # of large jobs, if it has several dimensions, smallest stride first
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        table = asdict(self)
        for part in (table, *table["parts"]):
            for key in _PER_RANK:
                if key in part and len(part[key]) > _MOST_PLAIN:
                    part[key] = {"runs": _runs(part[key])}
        return json.dumps(table, ensure_ascii=False, separators=(",", ":"))


def _runs(values: Sequence[int]) -> list[int]:
    """Values and how often each occurs in a row: v, n, v, n, ..."""
    return [number for value, run in groupby(values) for number in (value, sum(1 for _ in run))]
