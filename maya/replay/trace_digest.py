"""The digest of a trace: a hash of everything that affects its replay, and the communicators of the rank.

Ranks with the same digest form one rank class. The hash leaves out differences without meaning: times of the machine
that recorded the trace, addresses, numbers of ops and events, and the members of communicators. A collective is
identified by its communicator's number in the trace; `TraceDigest.communicators` says which ranks that number joins.
A send or recv keeps the place of its peer, so that the stages of a pipeline differ, but not the rank's own place: the
ranks that send to one root are alike, and so are those of an all-to-all.

cudaMalloc and cudaFree depend on how fast PyTorch's watchdog threads are, so they count only where they cost the host
time (`allocations`).

    python -m maya.replay.trace_digest FOLDER FIRST STEP ALLOCATIONS

prints the digests of every STEP-th trace of a run as lines of JSON, so that several processes can share the work.
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

from maya.replay.record_kinds import KERNEL_KINDS, P2P_CALLS, REPLAYED_KINDS, REPLAYED_KINDS_WITHOUT_ALLOCATIONS, among
from maya.replay.thread_groups import Columns, thread_groups
from maya.trace import RecordKind, Trace, TraceError
from maya.trace.reader import read_columns
from maya.trace.validation import check_signature
from maya.util.ranks import parse_strided

VERSION = 3  # of the digest: increase it when the hash changes

_TRACE = re.compile(r"rank(\d+)\.trace")
_COLUMNS = ("kind", "flags", "thread", "op", "ops", "signature", "stream", "value")
_HAS_VALUE = among(RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.COLLECTIVE, RecordKind.HOST_DELAY)
_IS_KERNEL = among(*KERNEL_KINDS)

CommInit = tuple[str, int]  # members and instance of a communicator, from its init in the trace


@dataclass(frozen=True)
class TraceDigest:
    """Equal for traces that are replayed alike."""

    digest: bytes
    communicators: dict[int, CommInit]  # by number in the trace
    problem: str = ""  # why the trace cannot be read; the rest is empty then

    def line(self, rank: int) -> str:
        """As a line of text, for another process or a file."""
        return json.dumps([rank, self.digest.hex(), list(self.communicators.items()), self.problem])

    @staticmethod
    def of_line(line: bytes | str) -> tuple[int, TraceDigest]:
        rank, digest, communicators, problem = json.loads(line)
        inits = {number: (members, instance) for number, (members, instance) in communicators}
        return rank, TraceDigest(bytes.fromhex(digest), inits, problem)


def trace_files(folder: Path) -> Sequence[tuple[int, Path]]:
    """The traces of a run's ranks in order, without those of processes that ranks started."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _TRACE.fullmatch(path.name))]
    return sorted(found)


def digest_of(path: Path, *, allocations: bool) -> TraceDigest:
    """The digest of one trace."""
    try:
        found = read_columns(path, _COLUMNS)
        texts, communicators = _text_digests(path, found.strings)
    except TraceError as error:
        return TraceDigest(b"", {}, str(error))
    records = found.columns
    kernels = _ops_of_kernels(records, texts)
    return TraceDigest(
        _digest(records, found.strings, texts, kernels, complete=found.complete, allocations=allocations), communicators
    )


def refined_digest(trace: Trace, kernels: npt.NDArray[Any], *, allocations: bool) -> bytes:
    """A digest by what each kernel computes (`kernels` has a number for each) instead of by the arguments of its op:
    arguments that do not matter may differ from rank to rank."""
    texts = _text_digests(trace.path, trace.strings)[0]
    return _digest(trace.records, trace.strings, texts, kernels, complete=trace.complete, allocations=allocations)


def _text_digests(path: Path, strings: Sequence[str]) -> tuple[npt.NDArray[np.uint64], dict[int, CommInit]]:
    """For each string of a trace a hash that is the same in all traces; and the trace's communicators."""
    communicators: dict[int, CommInit] = {}
    numbers = np.empty(len(strings), dtype=np.uint64)
    for at, text in enumerate(strings):
        if text.startswith('{"call":"nccl'):
            check_signature(path, at, text, RecordKind.COLLECTIVE)
            text = _without_identity(text, communicators)
        numbers[at] = _text_digest(text)
    return numbers, communicators


@lru_cache(maxsize=1 << 16)
def _text_digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _without_identity(text: str, communicators: dict[int, CommInit]) -> str:
    """A collective's signature without the fields that differ between the members of a communicator."""
    signature = json.loads(text)
    if "members" in signature:
        communicators[signature["communicator"]] = signature.pop("members"), signature.pop("instance")
    if signature["call"] not in P2P_CALLS or not _repeats_a_rank(
        communicators.get(signature["communicator"], ("", 0))[0]
    ):
        signature.pop("rank", None)
    return json.dumps(signature)


@lru_cache(maxsize=1 << 12)
def _repeats_a_rank(members: str) -> bool:
    """Whether a rank is several members of a communicator: its process drives several devices. Its own place in a
    send/recv is then known from the trace only."""
    ranks = parse_strided(members) if members else ()
    return len(set(ranks)) < len(ranks)


def _digest(
    records: Columns,
    strings: Sequence[str],
    texts: npt.NDArray[np.uint64],
    kernels: npt.NDArray[Any],
    *,
    complete: bool,
    allocations: bool,
) -> bytes:
    """The hash of all records that affect a replay, in the order of the file."""
    kinds = records["kind"]
    kept = np.flatnonzero((REPLAYED_KINDS if allocations else REPLAYED_KINDS_WITHOUT_ALLOCATIONS)[kinds])
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
    add(value[_HAS_VALUE[kind]])
    add(_events_meant(kind, value, _is_of_event(kind, records["signature"][kept], strings)))
    add(kernels)
    # Allocations and annotations of different threads are recorded in an order that they race for.
    add(np.array([np.count_nonzero(kinds == RecordKind.BLOCK_ALLOC)]))
    add(np.sort(texts[records["signature"][kinds == RecordKind.ANNOTATION]]))
    state.update(b"complete" if complete else b"cut short")
    return state.digest()


def _spent_ops(ops: npt.NDArray[Any], groups: npt.NDArray[np.int64], kept: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """For each kept record, the ops of its thread group so far; then the totals, and where other groups begin. Ops
    counted by a record that is left out show up at the next kept one, where they first matter."""
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


def _is_of_event(
    kind: npt.NDArray[np.uint8], signature: npt.NDArray[Any], strings: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Whether the value of each record is the number of an event. That of a wait for a device is the device's."""
    waits_for_event = np.array([text.startswith('{"wait"') and _awaits_event(text) for text in strings], dtype=bool)
    found: npt.NDArray[np.bool_] = _OF_EVENTS[kind] & ((kind != RecordKind.SYNCHRONIZE) | waits_for_event[signature])
    return found


def _awaits_event(text: str) -> bool:
    try:
        return bool(json.loads(text)["wait"] == "event")
    except ValueError:
        return False  # no record is of this string, or the trace is refused when it is read


def _events_meant(
    kind: npt.NDArray[np.uint8], value: npt.NDArray[np.uint64], is_of_event: npt.NDArray[np.bool_]
) -> npt.NDArray[Any]:
    """For each wait for an event, the record that recorded the event: numbers of reused events depend on races."""
    at = np.flatnonzero(is_of_event)
    if not len(at):
        return at
    at = at[np.argsort(value[at], kind="stable")]
    last = np.maximum.accumulate(np.where(kind[at] == RecordKind.EVENT_RECORD, np.arange(len(at)), -1))
    recording = at[np.maximum(last, 0)]
    meant = np.full(len(kind), -1, dtype=np.int64)
    meant[at] = np.where((last >= 0) & (value[at] == value[recording]), recording, -1)
    found: npt.NDArray[Any] = meant[is_of_event & (kind != RecordKind.EVENT_RECORD)]
    return found


_OF_EVENTS = among(RecordKind.EVENT_RECORD, RecordKind.STREAM_WAIT, RecordKind.SYNCHRONIZE)


def _ops_of_kernels(records: Columns, texts: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """For each kernel the signature of its op, mixed with whether the kernel before it came from the same op."""
    kinds = records["kind"]
    op = records["op"][_IS_KERNEL[kinds]]
    ended = np.flatnonzero(kinds == RecordKind.OP)
    numbers = records["op"][ended]
    order = np.argsort(numbers, kind="stable")
    numbers, signatures = numbers[order], texts[records["signature"][ended]][order]
    at = np.searchsorted(numbers, op, side="right") - 1  # the last with this number
    known = (at >= 0) & (op != 0)
    known[known] = numbers[at[known]] == op[known]
    signature = np.zeros(len(op), dtype=np.uint64)
    signature[known] = signatures[at[known]]
    changes = np.diff(op, prepend=op[:1]) != 0
    found: npt.NDArray[Any] = signature ^ changes.astype(np.uint64)
    return found


def _main() -> None:
    folder, first, step, allocations = sys.argv[1:]
    for rank, path in trace_files(Path(folder))[int(first) :: int(step)]:
        print(digest_of(path, allocations=bool(int(allocations))).line(rank), flush=True)


if __name__ == "__main__":
    _main()
