"""Read a trace file: bytes -> `Trace`.

The file of a program that crashed, was killed, could not write it or still runs is read up to its last complete block;
`Trace.complete` and `Trace.problem` say so. Only a file that is not a trace, or has another version, is an error.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from maya.trace import format as f
from maya.trace.columns import BlockRun, decode_varints
from maya.trace.format import BlockKind, Flag, RecordKind
from maya.trace.validation import TraceError, check_columns, check_signatures

if TYPE_CHECKING:
    import pandas

Records = npt.NDArray[np.void]  # of dtype format.RECORD
Ops = npt.NDArray[np.void]  # of dtype OP
_Payloads = list[tuple[int, memoryview]]  # counts and payloads of blocks
HostTimes = npt.NDArray[np.int64]  # ns that the thread of each record spent since the one before

# An op that ended, or an annotation. `sequence` is autograd's number, which an op in backward shares with the forward
# op it belongs to; -1: none. `parent` is the number of the op around it, 0: none.
OP = np.dtype(
    [
        ("op", "<u4"),
        ("parent", "<u4"),
        ("start_ns", "<u8"),
        ("duration_ns", "<u8"),
        ("sequence", "<i8"),
        ("signature", "<u4"),
        ("thread", "<u2"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("name", "O"),
        ("inputs", "O"),
    ]
)

_NO_SEQUENCE = 2**32 - 1
_MOST_PER_BLOCK = 1 << 16  # the recorder writes 4096
_BLOCKS_AT_ONCE = 8  # keeps the columns being decoded in the processor's cache


@dataclass(frozen=True)
class Header:
    """Where and when a trace was recorded."""

    version: int
    rank: int
    process: int
    started_ns: int  # wall clock at the trace's time 0, since 1970
    torch_version: str  # "" if unknown
    cuda_version: str
    gpu: str


@dataclass(frozen=True)
class RecordingLimit:
    """Where a recording ended because no more was to be recorded, while the program went on."""

    recorded_steps: int  # of an optimizer
    steps: int  # that the program made in all, as far as known
    operations: int  # recorded since the last step, if they were the reason; else 0

    def text(self) -> str:
        """For a person."""
        if self.operations:
            return f"recorded up to {self.operations:,} operations without an optimizer step (--record-steps)"
        return f"recorded up to optimizer step {self.recorded_steps:,} of {self.steps:,} (--record-steps)"


@dataclass(frozen=True, eq=False)
class Trace:
    """The trace of one process."""

    path: Path
    header: Header
    records: Records
    strings: list[str]
    complete: bool  # the program ended in order
    problem: str  # if it did not: what is missing; else ""
    remedy: str = ""  # if the file could not be written to its end: the remedy
    host_times: HostTimes | None = None  # see format.BlockKind.HOST_TIMES; None: not measured
    limit: RecordingLimit | None = None  # None: all that the program did was to be recorded

    @cached_property
    def _signatures(self) -> dict[int, dict[str, Any]]:
        return {}

    def signature(self, number: int) -> dict[str, Any]:
        """The JSON object in string `number`; {"text": ...} if the string is something else, {} if it is empty."""
        number = int(number)
        known = self._signatures.get(number)
        if known is None:
            known = self._signatures[number] = _parse(self.strings[number])
        return known

    def select(self, *kinds: RecordKind) -> Records:
        """The records of these kinds, in order."""
        return self.records[np.isin(self.records["kind"], np.array(kinds, dtype=np.uint8))]

    def kernels(self) -> Records:
        """The kernel launches, in order."""
        return self.select(RecordKind.KERNEL)

    @cached_property
    def ops(self) -> Ops:
        """The ATen ops and annotations that ended, by number, which is the order in which they began."""
        records = self.select(RecordKind.OP, RecordKind.ANNOTATION)
        records = records[np.argsort(records["op"], kind="stable")]
        ops = np.empty(len(records), dtype=OP)
        for same in ("op", "signature", "thread", "kind", "flags"):
            ops[same] = records[same]
        ops["parent"] = records["stream"]
        ops["start_ns"] = records["host_ns"]
        duration = records["value"] & np.uint64(0xFFFFFFFF)
        in_microseconds = records["flags"] & Flag.MICROSECONDS != 0
        ops["duration_ns"] = np.where(in_microseconds, duration * np.uint64(1000), duration)
        sequence = (records["value"] >> np.uint64(32)).astype(np.int64)
        ops["sequence"] = np.where(sequence == _NO_SEQUENCE, -1, sequence)
        used, which = np.unique(ops["signature"], return_inverse=True)
        names = np.empty(len(used), dtype=object)
        inputs = np.empty(len(used), dtype=object)
        for i, number in enumerate(used):
            signature = self.signature(number)
            names[i] = signature.get("op", self.strings[number])
            inputs[i] = signature.get("inputs", [])
        ops["name"] = names[which]
        ops["inputs"] = inputs[which]
        return ops

    def op(self, number: int) -> np.void | None:
        """The op with this number, as a row of `ops`; None for 0 and for an op that was not recorded."""
        at = int(np.searchsorted(self.ops["op"], number))
        if number == 0 or at == len(self.ops) or self.ops["op"][at] != number:
            return None
        row: np.void = self.ops[at]
        return row

    def op_of(self, record: np.void) -> np.void | None:
        """The op of a record, as a row of `ops`; None if there was none or it did not end."""
        return self.op(int(record["op"]))

    def to_pandas(self, *, demangle: bool = True) -> pandas.DataFrame:
        """A row for each record but ops and annotations: host_ns, kind, name, stream, thread, value, op (a number),
        op_name, signature (a number), from_graph. `RecordKind` says what a value is."""
        from maya.trace.dataframe import records_dataframe

        return records_dataframe(self.records, self.ops, self.signature, demangle=demangle)

    def ops_to_pandas(self) -> pandas.DataFrame:
        """A row for each ATen op and annotation: op (a number), name, parent (the number of the op around it, 0: none),
        start_ns, duration_ns, thread, kind, sequence (of autograd, -1: none), inputs."""
        from maya.trace.dataframe import ops_dataframe

        return ops_dataframe(self.ops)


@dataclass(frozen=True, eq=False)
class RecordColumns:
    """Some columns of a trace by name, each a separate array: for readers of a thousand traces."""

    columns: dict[str, npt.NDArray[Any]]
    strings: list[str]
    complete: bool
    host_time_blocks: _Payloads = field(default_factory=list)

    def host_times(self) -> HostTimes | None:
        """See `Trace.host_times`."""
        return _decode_host_times(self.host_time_blocks, len(next(iter(self.columns.values()))))


def read_columns(path: str | PathLike[str], names: Sequence[str]) -> RecordColumns:
    """Read these columns of a trace file, up to its last complete block, in the order of `format.COLUMNS`; `kind` must
    be among them."""
    path = Path(path)
    data = path.read_bytes()
    _read_header(path, data)
    with _damage_reported(path):
        blocks, strings, record_blocks, host_time_blocks = _take_apart(data)
        total = sum(count for count, _ in record_blocks)
        columns = {name: np.empty(total, dtype=f.RECORD[name]) for name in names}
        decoded = 0
        for run, pieces_of in _runs(record_blocks):
            for name in names:
                _decode_column(run, name, pieces_of[name], columns[name][decoded : decoded + run.records])
            decoded += run.records
    check_columns(path, columns, strings)
    return RecordColumns(columns, strings, not blocks.problem, host_time_blocks)


def _take_apart(data: bytes) -> tuple[_Blocks, list[str], _Payloads, _Payloads]:
    """The strings, the blocks of records and the blocks of host times of a file."""
    blocks = _Blocks(data)
    strings = [""]
    record_blocks: _Payloads = []
    host_time_blocks: _Payloads = []
    for kind, count, payload in blocks:
        if kind == BlockKind.STRINGS:
            strings.extend(_decode_strings(payload, count))
        elif kind == BlockKind.RECORDS:
            if count > _MOST_PER_BLOCK:
                raise ValueError(f"a block has {count} records; the most are {_MOST_PER_BLOCK}")
            record_blocks.append((count, payload))
        elif kind == BlockKind.HOST_TIMES:
            host_time_blocks.append((count, payload))
    return blocks, strings, record_blocks, host_time_blocks[: len(record_blocks)]


def read(path: str | PathLike[str], *, checked: bool = True) -> Trace:
    """Read a trace file, up to its last complete block. `checked`: refuse records that no program can have made."""
    path = Path(path)
    data = path.read_bytes()
    header = _read_header(path, data)
    with _damage_reported(path):
        blocks, strings, record_blocks, host_time_blocks = _take_apart(data)
        records = _decode_records(record_blocks)
        host_times = _decode_host_times(host_time_blocks, len(records))
    if checked:
        check_columns(path, records, strings)
        check_signatures(path, records, strings)
    problem = blocks.problem
    if blocks.totals and blocks.totals[:2] != (len(records), len(strings) - 1):
        problem = f"it has {len(records)} records and {len(strings) - 1} strings, but {blocks.totals[:2]} were written"
    return Trace(path, header, records, strings, not problem, problem, blocks.remedy, host_times, blocks.limit)


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Turn the errors of decoding blocks with right checksums into one that names the file."""
    try:
        yield
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise TraceError(f"{path} is damaged: {error}. Record it again.") from error


class _Blocks:
    """Iterates over the complete blocks of a file; afterwards `problem` says why it stopped, if not at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.problem = self.remedy = ""
        self.totals: tuple[int, ...] = ()
        self.limit: RecordingLimit | None = None

    def __iter__(self) -> Iterator[tuple[int, int, memoryview]]:
        at = f.HEADER.size
        while at < len(self._data):
            payload_at = at + f.BLOCK_HEADER.size
            if payload_at > len(self._data):
                self.problem = f"the block at byte {at} is cut short"
                return
            magic, checksum, kind, size, count = f.BLOCK_HEADER.unpack_from(self._data, at)
            payload = self._data[payload_at : payload_at + size]
            if magic != f.BLOCK_MAGIC:
                self.problem = f"there is no block at byte {at}"
                return
            if len(payload) < size:
                self.problem = f"the block at byte {at} is cut short"
                return
            if zlib.crc32(payload, zlib.crc32(self._data[at + f.BLOCK_CHECKED_FROM : payload_at])) != checksum:
                self.problem = f"the block at byte {at} is damaged: its checksum is wrong"
                return
            if kind == BlockKind.END:
                self.totals = f.END.unpack(payload)
                return
            if kind == BlockKind.CUT:
                self.problem, self.remedy = _unwritten(*f.CUT.unpack(payload))
                return
            if kind == BlockKind.LIMIT:
                self.limit = RecordingLimit(*f.LIMIT.unpack(payload))
            else:
                yield kind, count, payload
            at = payload_at + size
        self.problem = "the program that wrote it crashed or is still running"


def _unwritten(error: int) -> tuple[str, str]:
    """Why a trace ends before its program, and what to do about it."""
    said = os.strerror(error)
    if error in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk was full ({said})", f"{_ROOM}, and run the job again"
    if error == errno.EFBIG:
        return f"the limit on file sizes was reached ({said})", "raise the limit (ulimit -f), and run the job again"
    return f"it could not be written ({said})", "choose another folder with --out, and run the job again"


_ROOM = "make room there, or choose another folder with --out"


def _read_header(path: Path, data: bytes) -> Header:
    if not data:
        raise TraceError(
            f"{path} is empty: the disk was full, or a limit reached, before anything could be written to it, or the "
            f"program was killed; {_ROOM}, "
            "and run the job again"
        )
    if not data.startswith(f.MAGIC):
        raise TraceError(
            f"{path} is not a trace of Maya: it begins with {data[: len(f.MAGIC)]!r}, a trace begins with {f.MAGIC!r}. "
            "Give the trace file that maya-torchrun named at the end of its run."
        )
    if len(data) < f.HEADER.size:
        raise TraceError(f"{path} ends within its header: {len(data)} bytes of {f.HEADER.size}. Record it again.")
    _, version, checksum, rank, process, torch, cuda, started, gpu = f.HEADER.unpack_from(data)
    if version != f.VERSION:
        raise TraceError(
            f"{path} is a trace in format version {version}; this Maya reads version {f.VERSION}. "
            "Record it again with this Maya, or read it with the Maya that recorded it."
        )
    if zlib.crc32(data[f.HEADER_CHECKED_FROM : f.HEADER.size]) != checksum:
        raise TraceError(f"the header of {path} is damaged: its checksum is wrong. Record it again.")
    return Header(
        version=version,
        rank=rank,
        process=process,
        started_ns=started,
        torch_version=f"{torch // 10000}.{torch // 100 % 100}.{torch % 100}" if torch else "",
        cuda_version=f"{cuda // 1000}.{cuda // 10 % 100}" if cuda else "",
        gpu=gpu.rstrip(b"\0").decode("utf-8", "replace"),
    )


def _decode_strings(payload: memoryview, count: int) -> list[str]:
    data = np.frombuffer(payload, dtype=np.uint8)
    # A string has at least one byte, so a valid payload is long enough for `count` lengths and one text.
    ends = np.flatnonzero(data < 0x80)[:count]
    if len(ends) != count or count == 0:
        raise ValueError(f"a block of strings has {len(ends)} lengths, not {count}")
    texts_at = int(ends[-1]) + 1
    lengths, _ = decode_varints(data[:texts_at])
    bounds = [texts_at, *(texts_at + np.cumsum(lengths.astype(np.int64))).tolist()]
    if lengths.max() > len(data) or bounds[-1] != len(data):
        raise ValueError(f"a block of strings has {len(data) - texts_at} bytes, not {bounds[-1] - texts_at}")
    return [str(payload[begin:end], "utf-8", "replace") for begin, end in pairwise(bounds)]


def _decode_records(blocks: _Payloads) -> Records:
    records = np.empty(sum(count for count, _ in blocks), dtype=f.RECORD)
    decoded = 0
    for run, pieces_of in _runs(blocks):
        into = records[decoded : decoded + run.records]
        decoded += run.records
        for column, pieces in pieces_of.items():
            _decode_column(run, column, pieces, into[column])
    return records


def _decode_host_times(blocks: _Payloads, records: int) -> HostTimes | None:
    if sum(count for count, _ in blocks) != records or not records:
        return None
    values = [decode_varints(np.frombuffer(payload, dtype=np.uint8))[0] for _, payload in blocks]
    return np.concatenate(values).astype(np.int64)


def _decode_column(run: BlockRun, name: str, pieces: Sequence[npt.NDArray[np.uint8]], into: npt.NDArray[Any]) -> None:
    if name in f.COLUMNS_BY_KIND:
        into[:] = run.values_by_kind(pieces)
    else:
        into[:] = run.values(pieces, in_runs=name in f.COLUMNS_IN_RUNS)
    if name == "kind":
        run.group_by_kind(into)


def _runs(
    blocks: _Payloads,
) -> Iterator[tuple[BlockRun, dict[str, tuple[npt.NDArray[np.uint8], ...]]]]:
    """Groups of consecutive blocks, with the bytes of each of their columns."""
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        counts, payloads = zip(*blocks[first : first + _BLOCKS_AT_ONCE], strict=True)
        yield BlockRun(counts), dict(zip(f.COLUMNS, zip(*map(_columns_of, payloads), strict=True), strict=True))


def _columns_of(payload: memoryview) -> list[npt.NDArray[np.uint8]]:
    data = np.frombuffer(payload, dtype=np.uint8)
    lengths_size = 4 * len(f.COLUMNS)
    if len(data) < lengths_size:
        raise ValueError(f"a block of records has only {len(data)} bytes")
    ends = lengths_size + np.cumsum(data[:lengths_size].view("<u4").astype(np.int64))
    if ends[-1] != len(data):
        raise ValueError(f"the columns of a block have {ends[-1]} bytes, not {len(data)}")
    return np.split(data[lengths_size:], ends[:-1] - lengths_size)


def _parse(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"text": text}
