"""Traces of ranks: the device calls of a program, as numpy structured arrays.

    trace = maya.trace.read("rank0.trace")
    trace.kernels()["stream"]
    trace.signature(record["signature"])    # {"kernel": "_Z…", "grid": […], …}
    trace.op_of(record)["name"]             # "aten::mm"

`format` describes the file, `reader` reads it, `counts` counts records, `flops` adds up the FLOPs of GEMMs, `describe`
turns records into text.
"""

from __future__ import annotations

from maya.trace.counts import PlaceholderRead, TraceCounts, count_records
from maya.trace.format import Flag, RecordKind
from maya.trace.reader import Header, RecordingLimit, Trace, read
from maya.trace.validation import TraceError

__all__ = [
    "Flag",
    "Header",
    "PlaceholderRead",
    "RecordKind",
    "RecordingLimit",
    "Trace",
    "TraceCounts",
    "TraceError",
    "count_records",
    "read",
]
