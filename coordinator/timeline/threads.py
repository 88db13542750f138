"""Threads of a rank whose host times go together: the main thread, and those that work while it waits for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maya.trace import Kind, Trace

_MAIN = 1
_WHILE_MAIN_WAITS = "pt_autograd"


def among(*kinds: Kind) -> npt.NDArray[np.bool_]:
    """For each possible kind, whether it is among these."""
    table = np.zeros(256, dtype=bool)
    table[list(kinds)] = True
    return table


# What costs the host something or does something on a stream; all a replay heeds.
HEEDED = ~among(Kind.OP, Kind.ANNOTATION, Kind.BLOCK_ALLOC, Kind.BLOCK_FREE, Kind.MADE_UP_READ, Kind.THREAD)


def thread_groups(trace: Trace) -> npt.NDArray[np.int64]:
    """For each thread's number its group: 0 is that of the main thread, others are 1, 2, … as they first appear. A
    thread that did not say its name is taken to be of the main thread's group. -1: it did nothing that a replay heeds;
    the virtual device has such threads of its own."""
    records = trace.records
    groups = np.zeros(int(records["thread"].max(initial=0)) + 1, dtype=np.int64)
    groups[np.bincount(records["thread"], HEEDED[records["kind"]], minlength=len(groups)) == 0] = -1
    groups[_MAIN : _MAIN + 1] = 0
    found = 0
    for record in trace.select(Kind.THREAD):
        thread = int(record["thread"])
        name = str(trace.signature(int(record["signature"])).get("thread", ""))
        if thread != _MAIN and groups[thread] == 0 and not name.startswith(_WHILE_MAIN_WAITS):
            found += 1
            groups[thread] = found
    return groups
