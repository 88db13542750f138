"""The trace of a rank, as it lies in its file: format `VERSION`, little-endian.

`rank_runtime/shim/device/recorder*.c` write it, `maya.trace.reader` reads it. Numbers that both need are declared in
`rank_runtime.trace_format`.

A file is a header (`HEADER`) followed by blocks. A block is a block header (`BLOCK_HEADER`) and a payload:

STRINGS  `count` texts in UTF-8, numbered on from those of earlier blocks; the first of a file is number 1, and number 0
         is the empty text. Payload: the lengths in bytes as `count` varints, then the texts, end to end. A string comes
         before the first record that refers to it.
RECORDS  `count` records in the order of submission. Payload: the lengths in bytes of the columns in the order of
         `COLUMNS`, as u32, then the columns. A column is up to `count` varints: the differences of its values to their
         predecessors, modulo 2**64 and folded (0, -1, 1, -2, ... are written 0, 1, 2, 3, ...), without the zeros at its
         end; in `COLUMNS_IN_RUNS` a zero is followed by the number of zeros it stands for. The predecessor is the value
         of the previous record in this block, for the columns in `COLUMNS_BY_KIND` of the previous record of the same
         kind; 0 where there is none.
HOST_TIMES  with --host-time measured, before every block of RECORDS: for each of its `count` records the processor time
         in ns that the record's thread has spent since its last one, without Maya's own, as varints. Records of kinds
         that a replay skips have 0; their time counts for the next record. The first record of an autograd thread
         includes the time that the main thread spent before it waited for this thread. Older readers skip such blocks.
END      the program ended normally: `END` totals. Nothing follows. Without it the program crashed or is still running.
CUT      the program went on, but its trace could no longer be written: `CUT` has the errno, 28 for a full disk.
         Nothing follows. Older readers report the program as crashed.
LIMIT    the program went on, but no more of it was to be recorded (--record-steps): `LIMIT`. Written there, and again
         with the final number of steps before END. No records or strings follow. Older readers skip such blocks.

A varint is an unsigned integer, seven bits a byte, lowest first; the top bit is set on all bytes but the last.
Checksums are CRC-32 (zlib's) of everything behind them in their header and, for a block, of its payload.

`RECORD` and `RecordKind` describe the fields of a record. Signatures are JSON objects:

    KERNEL         {"kernel": mangled name, "grid": [x, y, z], "block": [x, y, z], "shared": bytes}. A kernel loaded at
                   run time also has "registers", the "source" file and "line" it was compiled from, "pointers": the
                   bytes behind each parameter, 0 for those that are not pointers, and "tensor_cores": true, if it has
                   matrix instructions. If torch splits an op into several launches, the signature has the part of this
                   launch: the number of "elements"; for a reduction also "outputs"; for a list of tensors, the number
                   of chunks (foreach) or tensors (cat) in the op's launches "before". A kernel that a CUDA graph
                   launches has "from", the signature of the op that was running during capture
    LIBRARY        {"call": function, and its sizes, types and options}
    COLLECTIVE     {"call": function, "communicator": number, "ranks": …, "rank": …, "count": …, "dtype": …, "op": …,
                   "root" or "peer": …}; its value is a sequence number: of a collective on its communicator, of a send
                   or receive among those from its sender to its receiver. A send or receive also has "shared_bytes":
                   the bytes of all sends (receives) of its group that leave (reach) the rank the same way, inside its
                   node or out of it. A rank's send to itself has the bytes inside its node, but takes as long as its
                   own bytes
                   or, at the end of communicator init, {"call": the function that made it, "communicator": number,
                   "ranks": …, "rank": …, "members": ranks of the job, "instance": …}. Members are ranges in the order
                   of the communicator, first-last:step, e.g. "0-7", "0-56:8", "3,1"; with "instance" they identify a
                   communicator on all its ranks. A number identifies it only in its own trace.
    MEMCPY         {"copy": "HtoD" | "DtoH" | "DtoD" | "HtoH" | "PtoP"}
    MEMSET         {"memset": value}
    MALLOC, FREE, BLOCK_ALLOC      {"bytes": n}; "mapped": true, if it is physical memory (cuMemCreate) to be mapped
    STREAM_CREATE  {"blocking": true}: it waits for the default stream and the default stream for it; empty: neither
                   waits. In a process that uses several devices, "home": the default stream of its device, if that is
                   not 0; the default stream itself is its own home
    THREAD         {"thread": name}
    SYNCHRONIZE    {"wait": "stream" | "event" | "device"}; for a device, the stream is its default stream
    OP, ANNOTATION {"op": name, "inputs": [{"shape": […], "dtype": …, "strides": […]} | null | list …]}
                   A step of torch.optim has "optimizer": 1, 2, … by the first parameter that it updates, in the order
                   of first steps. A GEMM that launched nothing, because an input has no elements, is
                   {"op": name, "empty": true, "at": "file.py:line"}
    PLACEHOLDER_READ   {"read": op, "at": "file.py:line", "bytes": n}; "given_up": true if the program had written
                   contents there that were too large to be kept; "assumed": true if it read no placeholders, but values
                   that follow from a CHOICE, and "choices": a bit for each place of such choices (0: not known)
    CHOICE         {"choice": op, "at": "file.py:line", "alternatives": n, "place": its number}; with "routes": true
                   (and value 0) for a place whose choices were found to route; "skew": the share of the most frequent
                   alternative, in thousandths of the mean, and "seed", if they are not chosen evenly
"""

from __future__ import annotations

import numpy as np

from rank_runtime.trace_format import (
    BLOCK_HEADER_FIELDS,
    BLOCK_MAGIC,
    CUT_FIELDS,
    END_FIELDS,
    HEADER_FIELDS,
    LIMIT_FIELDS,
    MAGIC,
    RECORD_COLUMNS,
    VERSION,
    BlockKind,
    Encoding,
    Flag,
    RecordKind,
    layout,
    offset_after,
)

__all__ = [
    "BLOCK_CHECKED_FROM",
    "BLOCK_HEADER",
    "BLOCK_MAGIC",
    "COLUMNS",
    "COLUMNS_BY_KIND",
    "COLUMNS_IN_RUNS",
    "CUT",
    "END",
    "HEADER",
    "HEADER_CHECKED_FROM",
    "LIMIT",
    "MAGIC",
    "RECORD",
    "VERSION",
    "BlockKind",
    "Flag",
    "RecordKind",
]

HEADER = layout(HEADER_FIELDS)
HEADER_CHECKED_FROM = offset_after(HEADER_FIELDS, "checksum")
BLOCK_HEADER = layout(BLOCK_HEADER_FIELDS)
BLOCK_CHECKED_FROM = offset_after(BLOCK_HEADER_FIELDS, "checksum")
END = layout(END_FIELDS)
CUT = layout(CUT_FIELDS)
LIMIT = layout(LIMIT_FIELDS)

# The order of the columns in a block.
COLUMNS = tuple(column.name for column in RECORD_COLUMNS)
COLUMNS_BY_KIND = frozenset(column.name for column in RECORD_COLUMNS if column.encoding is Encoding.BY_KIND)
COLUMNS_IN_RUNS = frozenset(column.name for column in RECORD_COLUMNS if column.encoding is Encoding.RUNS)

RECORD = np.dtype(
    [
        ("host_ns", "<u8"),  # since the trace began; of an op: when it began
        ("value", "<u8"),  # see RecordKind; of an op: duration | autograd's sequence number << 32 (all ones: none)
        ("signature", "<u4"),  # number of a string
        ("op", "<u4"),  # the innermost ATen op that was running on the thread, 0: none; of an op: its own number
        ("stream", "<u4"),  # of an op: the number of the op around it, 0: none
        ("ops", "<u4"),  # ATen ops begun on the thread since its last record
        ("thread", "<u2"),  # 1, 2, ... in the order in which threads first touched the device
        ("kind", "u1"),
        ("flags", "u1"),
    ]
)
