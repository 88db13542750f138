"""The trace format: what the recorder (C) and `maya.trace` (Python) must agree on.

Declared here once: the build generates the header `trace_format.h` from this module (build/declared_headers.py), and
`maya.trace.format`, which describes the file as a whole, imports it. A changed declaration changes the files: raise
VERSION.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag

MAGIC = b"MAYATRC\n"
BLOCK_MAGIC = b"MBLK"
VERSION = 3

# Fields of a struct: names and their format characters in the module `struct`. Structs are little-endian and packed.
StructFields = tuple[tuple[str, str], ...]

# The header of a file. 0 stands for an unknown torch or CUDA version.
HEADER_FIELDS: StructFields = (
    ("magic", "8s"),
    ("version", "I"),
    ("checksum", "I"),  # of everything after this field
    ("rank", "i"),
    ("process", "I"),
    ("torch_version", "I"),  # 21201 is 2.12.1
    ("cuda_version", "I"),  # 13000 is 13.0
    ("started_ns", "Q"),  # wall clock at the trace's time 0, since 1970
    ("gpu", "128s"),
)
# The header of a block.
BLOCK_HEADER_FIELDS: StructFields = (
    ("magic", "4s"),
    ("checksum", "I"),  # of everything after this field and of the payload
    ("kind", "I"),  # BlockKind
    ("bytes", "I"),  # of the payload
    ("count", "I"),  # records or strings in the payload
)
# The payload of an END block: totals of the file.
END_FIELDS: StructFields = (("records", "Q"), ("strings", "Q"), ("placeholder_reads", "Q"))
# The payload of a CUT block.
CUT_FIELDS: StructFields = (("error", "I"),)  # errno of the write that failed
# The payload of a LIMIT block: optimizer steps that were recorded and that the program has made so far, and the
# operations that were recorded since the last step, if they were the reason; else 0.
LIMIT_FIELDS: StructFields = (("recorded_steps", "Q"), ("steps", "Q"), ("operations", "Q"))


def layout(fields: StructFields) -> struct.Struct:
    """The struct with these fields."""
    return struct.Struct("<" + "".join(code for _, code in fields))


def offset_after(fields: StructFields, name: str) -> int:
    """Where the field after `name` begins."""
    position = [field for field, _ in fields].index(name) + 1
    return layout(fields[:position]).size


class BlockKind(IntEnum):
    """What the payload of a block holds."""

    STRINGS = 1
    RECORDS = 2
    END = 3
    HOST_TIMES = 4
    CUT = 5
    LIMIT = 6


class RecordKind(IntEnum):
    """What a record says, and the meaning of its `value` where it has one."""

    OP = 1  # an ATen op that launched device work, or an empty GEMM, written when the op ended; `Trace.ops` unpacks it
    ANNOTATION = 2  # torch.profiler.record_function; laid out like OP
    KERNEL = 3
    LIBRARY = 4  # a library call that occupies the device (GEMM, convolution, attention, FFT, ...)
    MEMCPY = 5  # bytes
    MEMSET = 6  # bytes
    MALLOC = 7  # address of device memory, or handle of physical memory that the program maps itself
    FREE = 8  # as MALLOC
    BLOCK_ALLOC = 9  # its number: 1, 2, … (an address would cost 3 bytes more); memory from PyTorch's allocator
    BLOCK_FREE = 10  # the number of the BLOCK_ALLOC that it frees
    EVENT_RECORD = 11  # event number
    STREAM_WAIT = 12  # event number
    SYNCHRONIZE = 13
    HOST_FUNCTION = 14
    COLLECTIVE = 15
    GRAPH_LAUNCH = 16  # graph number; the records of the graph follow, flagged FROM_GRAPH
    STREAM_CREATE = 17  # priority, in two's complement
    PLACEHOLDER_READ = 18  # bytes of placeholder values that the host read
    THREAD = 19  # the first record of every thread but number 1
    HOST_DELAY = 20  # ns that the host spent asleep or reading its clock
    CHOICE = 21  # how many times an op chose by rule among placeholder scores since its last such record


# Kinds that do not affect the replay. With measured host times, such a record has none of its own: the time goes to the
# thread's next record.
UNREPLAYED_KINDS = (
    RecordKind.OP,
    RecordKind.ANNOTATION,
    RecordKind.BLOCK_ALLOC,
    RecordKind.BLOCK_FREE,
    RecordKind.PLACEHOLDER_READ,
    RecordKind.THREAD,
    RecordKind.CHOICE,
)


class Flag(IntFlag):
    """Bits of a record's `flags`."""

    FROM_GRAPH = 1
    GROUPED = 2  # a COLLECTIVE in one NCCL group with the one recorded before it on its stream; they start together
    ROUTED = 4  # device work on what a CHOICE that routes has picked (observer/routed_ops.h)
    MICROSECONDS = 128  # an OP or ANNOTATION whose duration is in µs, because in ns it did not fit


class Encoding(Enum):
    """How a column is written: as differences to a predecessor, and to which one."""

    PREVIOUS = "previous"  # the previous record
    RUNS = "runs"  # the previous record; zeros are counted instead of repeated
    BY_KIND = "by kind"  # the previous record of the same kind


@dataclass(frozen=True)
class Column:
    """One field of a record."""

    name: str
    bits: int  # of a value, once decoded
    encoding: Encoding


# In the order in which a block holds them. The columns by kind come last.
RECORD_COLUMNS = (
    Column("host_ns", 64, Encoding.PREVIOUS),
    Column("kind", 8, Encoding.PREVIOUS),
    Column("flags", 8, Encoding.RUNS),
    Column("thread", 16, Encoding.RUNS),
    Column("op", 32, Encoding.PREVIOUS),
    Column("ops", 32, Encoding.RUNS),
    Column("signature", 32, Encoding.BY_KIND),
    Column("stream", 32, Encoding.BY_KIND),
    Column("value", 64, Encoding.BY_KIND),
)
