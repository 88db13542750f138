"""Traces of ranks: what the program asked its devices to do, as numpy structured arrays.

    trace = maya.trace.read("rank0.trace")
    trace.kernels()["stream"]
    trace.signature(record["signature"])    # {"kernel": "_Z…", "grid": […], …}
    trace.op_of(record)["name"]             # "aten::mm"

`format` describes the file, `reader` reads it, `summary` counts, `flops` adds up matrix products, `show` prints.
"""

from __future__ import annotations

from maya.trace.counts import PlaceholderRead, TraceCounts, count_records
from maya.trace.format import Flag, RecordKind
from maya.trace.reader import Header, Trace, TraceError, read

__all__ = [
    "Flag",
    "Header",
    "PlaceholderRead",
    "RecordKind",
    "Trace",
    "TraceCounts",
    "TraceError",
    "count_records",
    "read",
]
