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

import numpy as np
import numpy.typing as npt

from maya.trace import Flag, Kind, Trace, read

_TRACE = re.compile(r"rank(\d+)\.trace")
_VALUES_THAT_MATTER = (
    Kind.MEMCPY,
    Kind.MEMSET,
    Kind.EVENT_RECORD,
    Kind.STREAM_WAIT,
    Kind.SYNCHRONIZE,
    Kind.COLLECTIVE,
    Kind.HOST_DELAY,
)
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
    records = trace.records
    kinds = records["kind"]
    digest = blake2b(digest_size=16)
    digest.update(kinds.tobytes())
    digest.update((records["flags"] & ~np.uint8(Flag.MICROSECONDS)).tobytes())
    digest.update(np.ascontiguousarray(texts[records["signature"]]).tobytes())
    for column in ("thread", "op", "ops", "stream"):
        digest.update(np.ascontiguousarray(records[column]).tobytes())
    digest.update(records["value"][np.isin(kinds, np.array(_VALUES_THAT_MATTER, dtype=np.uint8))].tobytes())
    digest.update(b"complete" if trace.complete else b"cut short")
    return digest.digest()
