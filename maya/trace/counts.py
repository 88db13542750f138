"""Count the records of a trace: `Trace` -> `TraceCounts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from maya.trace.format import RecordKind
from maya.trace.reader import Trace


@dataclass(frozen=True)
class PlaceholderRead:
    """Host reads of placeholder values, by one op from one line of the program."""

    read: str  # the op, "aten::_local_scalar_dense"
    at: str  # "train.py:33"; "" if unknown
    times: int
    bytes: int
    given_up: int = 0  # number of reads of large copies whose contents were not kept


@dataclass(frozen=True)
class RuleChoice:
    """Choices among placeholder scores, made by rule by one op from one line of the program."""

    op: str  # "aten::topk"
    at: str  # "train.py:33"; "" if unknown
    alternatives: int
    skew: float  # how often the most frequent alternative is chosen, as a multiple of the mean
    seed: int
    times: int
    routes: bool  # it determines a shape, picks rows of activations, or is an operand of a GEMM


@dataclass(frozen=True)
class TraceCounts:
    """The totals of one trace."""

    records: int
    counts: dict[RecordKind, int]  # records by kind, for the kinds that occur
    ops: int  # ATen ops begun, whether or not they reached the device
    threads: int
    streams: int
    duration_ns: int  # from the beginning of the trace to its last record
    bytes_copied: dict[str, int]  # by direction, "HtoD", ...
    bytes_set: int
    # The most frequent of each come first.
    placeholder_reads: tuple[PlaceholderRead, ...]  # also reads of what follows from choices that route nothing
    assumed_reads: tuple[PlaceholderRead, ...]  # reads of what follows from choices that route
    choices: tuple[RuleChoice, ...]

    @property
    def launches(self) -> int:
        """Kernels launched one by one or by a graph."""
        return self.counts.get(RecordKind.KERNEL, 0)

    @property
    def library_calls(self) -> int:
        """Library calls that occupy the device."""
        return self.counts.get(RecordKind.LIBRARY, 0)


_KNOWN_KINDS = frozenset(RecordKind)
_OTHER_PLACES = 29  # places from this number on share a mark, and count as routing


def count_records(trace: Trace) -> TraceCounts:
    """The totals of a trace."""
    records = trace.records
    counts = np.bincount(records["kind"])
    # The `stream` of an op is not a stream.
    on_device = records[~np.isin(records["kind"], [RecordKind.OP, RecordKind.ANNOTATION])]
    return TraceCounts(
        records=len(records),
        counts={
            RecordKind(kind): int(counts[kind]) for kind in np.flatnonzero(counts).tolist() if kind in _KNOWN_KINDS
        },
        ops=int(records["ops"].sum(dtype=np.uint64)),
        threads=len(np.unique(records["thread"])),
        streams=len(np.unique(on_device["stream"])),
        duration_ns=int(records["host_ns"].max(initial=0)),
        bytes_copied=_bytes_copied(trace),
        bytes_set=int(trace.select(RecordKind.MEMSET)["value"].sum(dtype=np.uint64)),
        placeholder_reads=_reads(trace, assumed=False),
        assumed_reads=_reads(trace, assumed=True),
        choices=_choices(trace),
    )


def _bytes_copied(trace: Trace) -> dict[str, int]:
    copies = trace.select(RecordKind.MEMCPY)
    by_direction: Counter[str] = Counter()
    for number in np.unique(copies["signature"]).tolist():
        direction = str(trace.signature(number).get("copy", "unknown"))
        by_direction[direction] += int(copies["value"][copies["signature"] == number].sum(dtype=np.uint64))
    return dict(by_direction)


def _choices(trace: Trace) -> tuple[RuleChoice, ...]:
    records = trace.select(RecordKind.CHOICE)
    routing = _routing_places(trace)
    found = []
    for number in np.unique(records["signature"]).tolist():
        signature = trace.signature(number)
        times = int(records["value"][records["signature"] == number].sum(dtype=np.uint64))
        if times == 0:
            continue
        skew, seed = int(signature.get("skew", 1000)) / 1000, int(signature.get("seed", 0))
        op, at = str(signature["choice"]), str(signature["at"])
        routes = _mark_of_place(signature) & routing != 0
        found.append(RuleChoice(op, at, int(signature["alternatives"]), skew, seed, times, routes))
    return tuple(sorted(found, key=lambda choice: (-choice.times, choice.at, choice.op)))


def _mark_of_place(choice: Mapping[str, Any]) -> int:
    return 1 << min(int(choice.get("place", _OTHER_PLACES)), _OTHER_PLACES)


def _routing_places(trace: Trace) -> int:
    """The marks of the places whose choices route."""
    found = 1 << _OTHER_PLACES
    for number in np.unique(trace.select(RecordKind.CHOICE)["signature"]).tolist():
        signature = trace.signature(number)
        found |= _mark_of_place(signature) if signature.get("routes") else 0
    return found


def _reads(trace: Trace, *, assumed: bool) -> tuple[PlaceholderRead, ...]:
    reads = trace.select(RecordKind.PLACEHOLDER_READ)
    times: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    given_up: Counter[tuple[str, str]] = Counter()
    routing = _routing_places(trace)
    for number in np.unique(reads["signature"]).tolist():
        signature = trace.signature(number)
        choices = int(signature.get("choices", 0))  # 0: not known which ones
        if (bool(signature.get("assumed")) and (choices == 0 or choices & routing != 0)) != assumed:
            continue
        where = str(signature.get("read", "")), str(signature.get("at", ""))
        chosen = reads["value"][reads["signature"] == number]
        times[where] += len(chosen)
        size[where] += int(chosen.sum(dtype=np.uint64))
        given_up[where] += len(chosen) if signature.get("given_up") else 0
    return tuple(
        PlaceholderRead(read, at, count, size[read, at], given_up[read, at])
        for (read, at), count in times.most_common()
    )
