"""Traces of ranks: what the program asked its devices to do, as numpy structured arrays.

    trace = maya.trace.read("rank0.trace")
    trace.kernels()["stream"]
    trace.signature(record["signature"])    # {"kernel": "_Z…", "grid": […], …}
    trace.op_of(record)["name"]             # "aten::mm"

`format` describes the file, `reader` reads it, `summary` counts, `flops` adds up matrix products, `show` prints.
"""

from __future__ import annotations

from maya.trace.counts import MadeUpRead, Summary, summarise
from maya.trace.format import Flag, Kind
from maya.trace.reader import Header, Trace, TraceError, read

__all__ = ["Flag", "Header", "Kind", "MadeUpRead", "Summary", "Trace", "TraceError", "read", "summarise"]
