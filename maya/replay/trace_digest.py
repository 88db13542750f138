"""The outline of a trace: a digest of all that a replay heeds, and the communicators it had part in.

Ranks with the same digest are replayed as one. What differs without meaning is left out: times of the machine that
recorded the trace, addresses, numbers of ops and events, and who is in a communicator: a collective is told by its
communicator's number in the trace, and each rank keeps whom that number joins. A message keeps the places of its two
ends, so that the stages of a pipeline differ.

cudaMalloc and cudaFree depend on how quick the watchdog threads of PyTorch are, so they count only if they cost the
host anything (`allocations`).

    python -m coordinator.timeline.outline FOLDER FIRST STEP ALLOCATIONS

prints the outlines of every STEP-th of a run's traces, as lines of JSON: so several processes share the work.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.replay.thread_groups import HEEDED_ON_STREAMS, REPLAYED_KINDS, Columns, among, thread_groups
from maya.trace import RecordKind, Trace, TraceError
from maya.trace.reader import read_columns

VERSION = 1  # of what an outline heeds
MESSAGES = ("ncclSend", "ncclRecv")

_TRACE = re.compile(r"rank(\d+)\.trace")
_COLUMNS = ("kind", "flags", "thread", "op", "ops", "signature", "stream", "value")
_VALUES_HEEDED = among(RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.COLLECTIVE, RecordKind.HOST_DELAY)
_WORKS = among(RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMCPY, RecordKind.MEMSET)

Born = tuple[str, int]  # members and instance, as a trace has them


@dataclass(frozen=True)
class TraceDigest:
    """What tells a trace from others."""

    digest: bytes
    communicators: dict[int, Born]  # by number in the trace
    problem: str = ""  # why it cannot be read; then the rest says nothing

    def line(self, rank: int) -> str:
        """For another process."""
        return json.dumps([rank, self.digest.hex(), list(self.communicators.items()), self.problem])

    @staticmethod
    def of_line(line: bytes | str) -> tuple[int, TraceDigest]:
        rank, digest, communicators, problem = json.loads(line)
        born = {number: (members, instance) for number, (members, instance) in communicators}
        return rank, TraceDigest(bytes.fromhex(digest), born, problem)


def trace_files(folder: Path) -> Sequence[tuple[int, Path]]:
    """The traces of a run's ranks, in their order; not those of other processes that ranks started."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _TRACE.fullmatch(path.name))]
    return sorted(found)


def digest_of(path: Path, *, allocations: bool) -> TraceDigest:
    """The outline of one trace."""
    try:
        found = read_columns(path, _COLUMNS)
    except TraceError as error:
        return TraceDigest(b"", {}, str(error))
    texts, communicators = _text_digests(found.strings)
    records = found.columns
    works = _ops_of_works(records, texts)
    return TraceDigest(
        _digest(records, found.strings, texts, works, complete=found.complete, allocations=allocations), communicators
    )


def refined_digest(trace: Trace, works: npt.NDArray[Any], *, allocations: bool) -> bytes:
    """The same, by what works have to do, of which `works` has something for each, instead of by what their ops were
    called with: arguments that do not matter may differ from rank to rank."""
    texts = _text_digests(trace.strings)[0]
    return _digest(trace.records, trace.strings, texts, works, complete=trace.complete, allocations=allocations)


def _text_digests(strings: Sequence[str]) -> tuple[npt.NDArray[np.uint64], dict[int, Born]]:
    """For each string of a trace a number that means the same text in all traces; and its communicators."""
    communicators: dict[int, Born] = {}
    numbers = np.empty(len(strings), dtype=np.uint64)
    for at, text in enumerate(strings):
        if text.startswith('{"call":"nccl'):
            text = _without_identity(text, communicators)
        numbers[at] = _text_digest(text)
    return numbers, communicators


@lru_cache(maxsize=1 << 16)
def _text_digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _without_identity(text: str, communicators: dict[int, Born]) -> str:
    """A collective's signature without what tells the members of a communicator apart."""
    signature = json.loads(text)
    if "members" in signature:
        communicators[signature["communicator"]] = signature.pop("members"), signature.pop("instance")
    if signature["call"] not in MESSAGES:
        signature.pop("rank", None)
    return json.dumps(signature)


def _digest(
    records: Columns,
    strings: Sequence[str],
    texts: npt.NDArray[np.uint64],
    works: npt.NDArray[Any],
    *,
    complete: bool,
    allocations: bool,
) -> bytes:
    """Of everything that a replay heeds, in the order of the file."""
    kinds = records["kind"]
    kept = np.flatnonzero((REPLAYED_KINDS if allocations else HEEDED_ON_STREAMS)[kinds])
    kind = kinds[kept]
    groups = thread_groups(records, strings)[records["thread"]]
    value = records["value"][kept]
    state = blake2b(digest_size=16)

    def add(column: npt.NDArray[Any]) -> None:
        state.update(np.ascontiguousarray(column).data)

    add(kind)
    add(records["flags"][kept])
    add(texts[records["signature"][kept]])
    add(records["stream"][kept])
    add(groups[kept].astype(np.int16))
    add(_spent_ops(records["ops"], groups, kept))
    add(value[_VALUES_HEEDED[kind]])
    add(_events_meant(kind, value))
    add(works)
    # What threads allocate and annotate comes in an order that they race for.
    add(np.array([np.count_nonzero(kinds == RecordKind.BLOCK_ALLOC)]))
    add(np.sort(texts[records["signature"][kinds == RecordKind.ANNOTATION]]))
    state.update(b"complete" if complete else b"cut short")
    return state.digest()


def _spent_ops(ops: npt.NDArray[Any], groups: npt.NDArray[np.int64], kept: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Of each record that is kept, the ops of its group so far; then where other groups begin, and all totals. Ops that
    a record which is left out had counted show up at the next one, which is when they first matter."""
    parts = []
    for group in range(int(groups.max(initial=0)) + 1):
        inside = groups == group
        total = np.cumsum(np.where(inside, ops, 0), dtype=np.uint64)
        parts.append(total[kept[inside[kept]]])
        parts.append(total[-1:])
        if group:
            first = int(np.argmax(inside))
            main = np.where(groups[:first] == 0, ops[:first], 0).sum(dtype=np.uint64)
            parts.append(np.array([main, np.searchsorted(kept, first)], dtype=np.uint64))
    return np.concatenate(parts)


def _events_meant(kind: npt.NDArray[np.uint8], value: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Of waits for events, which recording they mean: events are reused in an order that a replay does not heed."""
    at = np.flatnonzero(_OF_EVENTS[kind])
    if not len(at):
        return at
    at = at[np.argsort(value[at], kind="stable")]
    last = np.maximum.accumulate(np.where(kind[at] == RecordKind.EVENT_RECORD, np.arange(len(at)), -1))
    recording = at[np.maximum(last, 0)]
    meant = np.full(len(kind), -1, dtype=np.int64)
    meant[at] = np.where((last >= 0) & (value[at] == value[recording]), recording, -1)
    found: npt.NDArray[Any] = meant[_OF_EVENTS[kind] & (kind != RecordKind.EVENT_RECORD)]
    return found


_OF_EVENTS = among(RecordKind.EVENT_RECORD, RecordKind.STREAM_WAIT, RecordKind.SYNCHRONIZE)


def _ops_of_works(records: Columns, texts: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Of each work the signature of its op, and whether the work before it came from the same one."""
    kinds = records["kind"]
    op = records["op"][_WORKS[kinds]]
    ended = np.flatnonzero(kinds == RecordKind.OP)
    signature = np.zeros(int(records["op"].max(initial=0)) + 1, dtype=np.uint64)
    signature[records["op"][ended]] = texts[records["signature"][ended]]
    signature[0] = 0
    changes = np.diff(op, prepend=op[:1]) != 0
    found: npt.NDArray[Any] = signature[op] ^ changes.astype(np.uint64)
    return found


def _main() -> None:
    folder, first, step, allocations = sys.argv[1:]
    for rank, path in trace_files(Path(folder))[int(first) :: int(step)]:
        print(digest_of(path, allocations=bool(int(allocations))).line(rank), flush=True)


if __name__ == "__main__":
    _main()
