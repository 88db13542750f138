"""Writes small traces, as the recorder would: for tests that need ranks which did just so and so.

trace = TraceWriter(rank=0)
trace.kernel("a", stream=0)
trace.save(folder)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from maya.trace import Flag, RecordKind
from maya.trace import format as f

_PER_BLOCK = 50  # so that even small traces have several


class TraceWriter:
    """The trace of one rank, record by record."""

    columns = f.COLUMNS

    def __init__(self, rank: int, per_block: int = _PER_BLOCK, *, measured: bool = False) -> None:
        """`measured`: the field host_time of a record is what the program itself took before it."""
        self.rank = rank
        self._measured = measured
        self._per_block = per_block
        self._strings: dict[str, int] = {"": 0}
        self._records: list[dict[str, int]] = []
        self._ops = 0
        self._sent: dict[tuple[int, str, int], int] = {}
        self._communicators: dict[int, tuple[int, ...]] = {}

    # ---- what a rank does ----

    def add(self, kind: RecordKind, signature: object = "", **fields: int) -> None:
        """One record; `signature` is text, or what JSON is made of."""
        text = signature if isinstance(signature, str) else json.dumps(signature, separators=(",", ":"))
        number = self._strings.setdefault(text, len(self._strings))
        record = dict.fromkeys(f.COLUMNS, 0) | {"thread": 1, "kind": int(kind), "signature": number}
        self._records.append(record | {"host_ns": 1000 * len(self._records)} | fields)

    def op(self, name: str, inputs: Sequence[Any] = (), **fields: int) -> int:
        """An op that ends here; returns its number."""
        self._ops += 1
        self.add(RecordKind.OP, {"op": name, "inputs": list(inputs)}, op=self._ops, value=0xFFFFFFFF << 32, **fields)
        return self._ops

    def annotation(self, name: str, **fields: int) -> None:
        self._ops += 1
        self.add(RecordKind.ANNOTATION, {"op": name}, op=self._ops, value=0xFFFFFFFF << 32, **fields)

    def kernel(self, name: str, stream: int = 0, **fields: int) -> None:
        shape = {"grid": [1, 1, 1], "block": [128, 1, 1], "shared": 0}
        self.add(RecordKind.KERNEL, {"kernel": name, **shape}, stream=stream, **fields)

    def copy(self, direction: str, size: int, stream: int = 0, **fields: int) -> None:
        self.add(RecordKind.MEMCPY, {"copy": direction}, stream=stream, value=size, **fields)

    def record(self, event: int, stream: int, **fields: int) -> None:
        self.add(RecordKind.EVENT_RECORD, stream=stream, value=event, **fields)

    def wait(self, event: int, stream: int, **fields: int) -> None:
        self.add(RecordKind.STREAM_WAIT, stream=stream, value=event, **fields)

    def after(self, one: int, other: int, event: int) -> None:
        """Stream `one` goes on after what stream `other` has been given so far."""
        self.record(event, other)
        self.wait(event, one)

    def synchronise(self, what: str, stream: int = 0, event: int = 0, **fields: int) -> None:
        self.add(RecordKind.SYNCHRONIZE, {"wait": what}, stream=stream, value=event, **fields)

    def create_stream(self, stream: int, *, blocking: bool = False) -> None:
        self.add(RecordKind.STREAM_CREATE, {"blocking": True} if blocking else "", stream=stream)

    def thread(self, thread: int, name: str) -> None:
        self.add(RecordKind.THREAD, {"thread": name}, thread=thread)

    def join(self, communicator: int, members: Iterable[int], instance: int = 0) -> None:
        """The rank becomes a member of a communicator."""
        ranks = self._communicators[communicator] = tuple(members)
        signature = self._of(communicator) | {"members": ",".join(map(str, ranks)), "instance": instance}
        self.add(RecordKind.COLLECTIVE, {"call": "ncclCommInitRankConfig", **signature})

    def collective(self, communicator: int, call: str = "ncclAllReduce", count: int = 1024, **fields: int) -> None:
        sequence = self._next(communicator, "")
        signature = {"call": call, **self._of(communicator), "count": count, "dtype": "fp32"}
        self.add(RecordKind.COLLECTIVE, signature, value=sequence, **fields)

    def send(self, communicator: int, to: int, count: int = 1024, shared_bytes: int = 0, **fields: int) -> None:
        """To a rank of the job."""
        self._message("ncclSend", communicator, to, count, shared_bytes, **fields)

    def receive(self, communicator: int, source: int, count: int = 1024, shared_bytes: int = 0, **fields: int) -> None:
        self._message("ncclRecv", communicator, source, count, shared_bytes, **fields)

    def _message(self, call: str, communicator: int, other: int, count: int, shared_bytes: int, **fields: int) -> None:
        peer = self._communicators[communicator].index(other)
        sequence = self._next(communicator, call, peer)
        signature = {"call": call, **self._of(communicator), "count": count, "dtype": "fp32", "peer": peer}
        signature["shared_bytes"] = max(4 * count, shared_bytes)
        self.add(RecordKind.COLLECTIVE, signature, value=sequence, **fields)

    def _of(self, communicator: int) -> dict[str, Any]:
        members = self._communicators[communicator]
        return {"communicator": communicator, "ranks": len(members), "rank": members.index(self.rank)}

    def _next(self, communicator: int, what: str, peer: int = -1) -> int:
        key = (communicator, what, peer)
        self._sent[key] = self._sent.get(key, -1) + 1
        return self._sent[key]

    # ---- the file ----

    def __len__(self) -> int:
        return len(self._records)

    def replace(self, strings: Sequence[str], records: Sequence[dict[str, int]]) -> None:
        """Write these strings, the first of which is empty, and these records instead."""
        self._strings = {text: number for number, text in enumerate(strings)}
        self._records = list(records)

    def encoded_records(self) -> bytes:
        """The blocks of records."""
        parts = []
        for first in range(0, len(self._records), self._per_block):
            some = self._records[first : first + self._per_block]
            if self._measured:
                times = b"".join(_varint(record.get("host_time", 0)) for record in some)
                parts.append(_block(f.BlockKind.HOST_TIMES, len(some), times))
            columns = [_column(some, name) for name in f.COLUMNS]
            lengths = b"".join(len(column).to_bytes(4, "little") for column in columns)
            parts.append(_block(f.BlockKind.RECORDS, len(some), lengths + b"".join(columns)))
        return b"".join(parts)

    def save_like(self, folder: Path, other: TraceWriter, records: bytes) -> None:
        """As a rank that did what `other` did, of which `records` are the blocks, but for its places in communicators,
        which it has joined in the same order."""
        own = {number: self._of(number) for number in self._communicators}
        texts = {}
        for text, number in other._strings.items():
            if text.startswith('{"call":"nccl') and "members" not in text:
                signature = json.loads(text)
                text = json.dumps(signature | own[signature["communicator"]], separators=(",", ":"))
            texts[text] = number
        births = [text for text in self._strings if "members" in text]
        for old, new in zip([text for text in texts if "members" in text], births, strict=True):
            texts = {new if text == old else text: number for text, number in texts.items()}
        self._strings, self._records = texts, other._records
        self.save(folder, records=records)

    def save(
        self, folder: Path, *, complete: bool = True, name: str | None = None, records: bytes | None = None
    ) -> Path:
        path = folder / (name or f"rank{self.rank}.trace")
        fixed = f.HEADER.pack(f.MAGIC, f.VERSION, 0, self.rank, 1, 21201, 13000, 0, b"NVIDIA H100 80GB HBM3")
        checksum = zlib.crc32(fixed[f.HEADER_CHECKED_FROM :])
        parts = [f.HEADER.pack(f.MAGIC, f.VERSION, checksum, self.rank, 1, 21201, 13000, 0, b"NVIDIA H100 80GB HBM3")]
        texts = [text.encode() for text in self._strings if text]
        if texts:
            parts.append(
                _block(f.BlockKind.STRINGS, len(texts), b"".join(map(_varint, map(len, texts))) + b"".join(texts))
            )
        parts.append(self.encoded_records() if records is None else records)
        if complete:
            parts.append(_block(f.BlockKind.END, 0, f.END.pack(len(self._records), len(texts), 0)))
        path.write_bytes(b"".join(parts))
        return path


GROUPED = int(Flag.GROUPED)
FROM_GRAPH = int(Flag.FROM_GRAPH)


def _block(kind: f.BlockKind, count: int, payload: bytes) -> bytes:
    fields = f.BLOCK_HEADER.pack(f.BLOCK_MAGIC, 0, kind, len(payload), count)
    checksum = zlib.crc32(payload, zlib.crc32(fields[f.BLOCK_CHECKED_FROM :]))
    return f.BLOCK_HEADER.pack(f.BLOCK_MAGIC, checksum, kind, len(payload), count) + payload


def _column(records: Sequence[dict[str, int]], name: str) -> bytes:
    before: dict[int, int] = {}
    folded: list[int] = []
    for record in records:
        key = record["kind"] if name in f.COLUMNS_BY_KIND else 0
        difference = (record[name] - before.get(key, 0)) % 2**64
        before[key] = record[name]
        folded.append(2 * difference if difference < 2**63 else 2 * (2**64 - difference) - 1)
    while folded and folded[-1] == 0:
        folded.pop()
    if name in f.COLUMNS_IN_RUNS:
        return _in_runs(folded)
    return b"".join(map(_varint, folded))


def _in_runs(folded: Sequence[int]) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < len(folded):
        run = 1
        if folded[at] == 0:
            while folded[at + run] == 0:
                run += 1
            parts.append(_varint(0) + _varint(run))
        else:
            parts.append(_varint(folded[at]))
        at += run
    return b"".join(parts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
