"""Which ranks did the same: the trace files of a run's folder -> one `Behaviour` for each distinct course of events.

Two traces say the same if a replay cannot tell them apart: the same records in the same order, with the same texts,
streams and values. What differs without meaning is left out: times of the machine that recorded them, addresses, and
who is in a communicator: a collective is told by its communicator's number in the trace, and each rank keeps whom that
number joins. A message keeps the places of its two ends, so that the stages of a pipeline differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.timeline.threads import HEEDED, among, thread_groups
from maya.trace import Kind, Trace, read
from maya.trace.reader import Records

_TRACE = re.compile(r"rank(\d+)\.trace")
MESSAGES = ("ncclSend", "ncclRecv")


@dataclass(frozen=True)
class Communicator:
    """Alike on all its ranks: its members in order, and which of those with the same members it is."""

    members: tuple[int, ...]
    instance: int


@dataclass
class Behaviour:
    """Ranks whose traces say the same."""

    trace: Trace  # of the first of them
    ranks: list[int] = field(default_factory=list)
    communicators: list[dict[int, Communicator]] = field(default_factory=list)  # of each of the ranks, by number


class Reader:
    """Reads traces one at a time and keeps those that say something new."""

    def __init__(self) -> None:
        self.behaviours: dict[bytes, Behaviour] = {}
        self._texts: dict[str, int] = {}
        self._known: dict[tuple[str, int], Communicator] = {}

    def add(self, path: Path, rank: int) -> None:
        """One more rank."""
        trace = read(path)
        texts, communicators = self._number_texts(trace)
        digest = _digest(trace, texts)
        behaviour = self.behaviours.setdefault(digest, Behaviour(trace))
        behaviour.ranks.append(rank)
        behaviour.communicators.append(communicators)

    def _number_texts(self, trace: Trace) -> tuple[npt.NDArray[np.uint32], dict[int, Communicator]]:
        """For each string of a trace a number that means the same text in all traces; and its communicators."""
        communicators: dict[int, Communicator] = {}
        numbers = np.empty(len(trace.strings), dtype=np.uint32)
        for at, text in enumerate(trace.strings):
            if text.startswith('{"call":"nccl'):
                text = self._without_identity(text, communicators)
            numbers[at] = self._texts.setdefault(text, len(self._texts))
        return numbers, communicators

    def _without_identity(self, text: str, communicators: dict[int, Communicator]) -> str:
        """A collective's signature without what tells the members of a communicator apart."""
        signature = json.loads(text)
        if "members" in signature:
            key = signature.pop("members"), signature.pop("instance")
            if key not in self._known:
                self._known[key] = Communicator(parse_members(key[0]), key[1])
            communicators[signature["communicator"]] = self._known[key]
        if signature["call"] not in MESSAGES:
            signature.pop("rank", None)
        return json.dumps(signature)


def read_behaviours(folder: Path) -> list[Behaviour]:
    """The behaviours of a run, in the order of their first ranks. A rank that asked nothing of its GPU has no trace."""
    reader = Reader()
    for rank, path in trace_files(folder):
        reader.add(path, rank)
    return list(reader.behaviours.values())


def trace_files(folder: Path) -> Sequence[tuple[int, Path]]:
    """The traces of a run's ranks, in their order; not those of other processes that ranks started."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _TRACE.fullmatch(path.name))]
    return sorted(found)


def parse_members(text: str) -> tuple[int, ...]:
    """The ranks in "0-7", "0-56:8", "3,1"."""
    members: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        members.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(members)


def _digest(trace: Trace, texts: npt.NDArray[np.uint32]) -> bytes:
    """Of everything that a replay heeds, in the order of the file."""
    records = trace.records
    kinds = records["kind"]
    kept = np.flatnonzero(HEEDED[kinds])
    kind = kinds[kept]
    groups = thread_groups(trace)[records["thread"]]
    text = texts[records["signature"]]
    digest = blake2b(digest_size=16)

    def add(column: npt.NDArray[Any]) -> None:
        digest.update(np.ascontiguousarray(column).tobytes())

    add(kind)
    add(records["flags"][kept])
    add(text[kept])
    add(records["stream"][kept])
    add(groups[kept])
    add(_spent_ops(records["ops"], groups, kept))
    add(records["value"][kept][_VALUES_HEEDED[kind]])
    add(_events_meant(kind, records["value"][kept]))
    add(_ops_of_works(records, text, kept, kind))
    for unordered in (Kind.BLOCK_ALLOC, Kind.ANNOTATION):  # threads race; what they ask for in all does not differ
        for pair in sorted(zip(*np.unique(text[kinds == unordered], return_counts=True), strict=True)):
            add(np.array(pair))
    digest.update(b"complete" if trace.complete else b"cut short")
    return digest.digest()


def _spent_ops(ops: npt.NDArray[np.uint32], groups: npt.NDArray[np.int64], kept: npt.NDArray[np.intp]) -> Any:
    """Of each record that is kept, the ops of its group so far; then where other groups begin, and all totals. Ops that
    a record which is left out had counted show up at the next one, which is when they first matter."""
    parts = []
    for group in range(int(groups.max(initial=0)) + 1):
        total = np.cumsum(np.where(groups == group, ops, 0), dtype=np.int64)
        parts.append(total[kept[groups[kept] == group]])
        parts.append(total[-1:])
        if group:
            first = int(np.argmax(groups == group))
            main = np.where(groups[:first] == 0, ops[:first], 0).sum(dtype=np.int64)
            parts.append(np.array([main, np.searchsorted(kept, first)], dtype=np.int64))
    return np.concatenate(parts)


def _events_meant(kind: npt.NDArray[np.uint8], value: npt.NDArray[np.uint64]) -> Any:
    """Of waits for events, which recording they mean: events are reused in an order that the replay does not heed."""
    at = np.flatnonzero((kind == Kind.EVENT_RECORD) | (kind == Kind.STREAM_WAIT) | (kind == Kind.SYNCHRONIZE))
    at = at[np.argsort(value[at], kind="stable")]
    recorded = kind[at] == Kind.EVENT_RECORD
    last = np.maximum.accumulate(np.where(recorded, np.arange(len(at)), -1)) if len(at) else np.zeros(0, np.intp)
    meant = np.full(len(kind), -1, dtype=np.int64)
    same = (last >= 0) & (value[at] == value[at[np.maximum(last, 0)]])
    meant[at] = np.where(same, at[np.maximum(last, 0)], -1)
    return meant[(kind == Kind.STREAM_WAIT) | (kind == Kind.SYNCHRONIZE)]


def _ops_of_works(
    records: Records, text: npt.NDArray[np.uint32], kept: npt.NDArray[np.intp], kind: npt.NDArray[np.uint8]
) -> Any:
    """Of each work the signature of its op, and whether the work before it came from the same one."""
    works = kept[_WORKS[kind]]
    op = records["op"][works]
    ended = np.flatnonzero(records["kind"] == Kind.OP)
    signature = np.zeros(int(records["op"].max(initial=0)) + 1, dtype=np.int64)
    signature[records["op"][ended]] = text[ended].astype(np.int64) + 1
    signature[0] = 0
    return signature[op] << 1 | np.diff(op, prepend=np.uint32(0)).astype(bool)


_VALUES_HEEDED = among(Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE, Kind.HOST_DELAY)
_WORKS = among(Kind.KERNEL, Kind.LIBRARY)
