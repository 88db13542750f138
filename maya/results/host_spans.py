"""When the host was in which op and in which call of CUDA: for drawing a rank.

In: a trace, the host cursor after each of its records, and what the program's own code took before it (`RankDetail`).
Out: begin and end of every op and annotation, and of every call.

A record's cursor is the time at which its call returned. A call began what it costs earlier; one that waited for the
device began when the record before it and the ops since then were over. An op ends with its own record. Where it began
the cursor does not say, only how many ops began since the last record of its thread: they are taken to have begun one
after the other, each as long after the one before, so that the innermost began last, right before the first call in
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maya.replay.run_settings import HostCosts
from maya.replay.thread_groups import thread_groups
from maya.trace import Flag, RecordKind, Trace

Times = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]

_OPS = (RecordKind.OP, RecordKind.ANNOTATION)


@dataclass(frozen=True, eq=False)
class HostSpans:
    """For each record of a trace: when what it says began and ended on the host."""

    begin: Times
    end: Times
    opened: Index  # of an op or annotation: the first record that was made in it; of others the record itself


def host_spans(trace: Trace, host_ns: Times, own_ns: Times, costs: HostCosts) -> HostSpans:
    """Of all records."""
    records = trace.records
    before = _cursor_before(trace, host_ns)
    spent = np.array(
        [costs.calls.get(RecordKind(kind), 0) if kind in _KNOWN else 0 for kind in range(256)], dtype=np.int64
    )
    free = (records["flags"] & Flag.FROM_GRAPH) != 0
    free |= (records["kind"] == RecordKind.COLLECTIVE) & ((records["flags"] & Flag.GROUPED) != 0)
    cost = np.where(free, 0, spent[records["kind"]])
    begin = np.maximum(host_ns - cost, before)
    waits = records["kind"] == RecordKind.SYNCHRONIZE
    begin[waits] = np.minimum(before + own_ns, host_ns)[waits]
    delays = records["kind"] == RecordKind.HOST_DELAY
    begin[delays] = np.maximum(host_ns - records["value"].astype(np.int64), before)[delays]
    opened = np.arange(len(host_ns))
    _begin_ops(trace, host_ns, before, own_ns, begin, opened)
    return HostSpans(begin, host_ns, opened)


_KNOWN = frozenset(RecordKind)


def _cursor_before(trace: Trace, host_ns: Times) -> Times:
    """Of each record: the cursor that its threads had before it."""
    groups = thread_groups(trace.records, trace.strings)[trace.records["thread"]]
    before = np.zeros(len(host_ns), dtype=np.int64)
    for group in np.unique(groups).tolist():
        own = np.flatnonzero(groups == group)
        before[own[1:]] = host_ns[own[:-1]]
        before[own[0]] = host_ns[own[0]] if group else 0
    return before


def _begin_ops(trace: Trace, host_ns: Times, before: Times, own_ns: Times, begin: Times, all_opened: Index) -> None:
    """Fill in when ops and annotations began, and with which record."""
    records = trace.records
    is_op = np.isin(records["kind"], np.array(_OPS, dtype=np.uint8))
    for thread in np.unique(records["thread"]).tolist():
        own = np.flatnonzero(records["thread"] == thread)
        numbers = records["op"][own].astype(np.int64)
        first = _first_inside(numbers)
        ends = np.flatnonzero(is_op[own])
        opened = first[ends]  # of each op: the first record that was made in it
        # Of ops that were open at the same first record the innermost, which has the highest number, comes last.
        order = np.lexsort((-numbers[ends], opened))
        at = np.arange(len(order))
        new = np.ones(len(order), dtype=bool)
        new[1:] = opened[order][1:] != opened[order][:-1]
        depth = at - np.maximum.accumulate(np.where(new, at, 0)) + 1
        positions = own[ends[order]]
        inside = own[opened[order]]
        begun_since = records["ops"][inside].astype(np.int64)
        of_one = own_ns[inside] // np.maximum(begun_since, 1)
        begun = np.maximum(begun_since - depth, 0) * of_one + before[inside]
        begin[positions] = np.minimum(begun, host_ns[inside])
        all_opened[positions] = inside


def _first_inside(numbers: Times) -> Index:
    """Of each record of a thread, if it is the end of an op: the first record that was made since the op began.

    While an op is open, all records of its thread have its number or a higher one. So they are those after the last
    record with a lower number.
    """
    lower: list[int] = []  # positions, with rising numbers
    values: list[int] = []
    first = np.empty(len(numbers), dtype=np.intp)
    for at, number in enumerate(numbers.tolist()):
        while values and values[-1] >= number:
            values.pop()
            lower.pop()
        first[at] = lower[-1] + 1 if lower else 0
        values.append(number)
        lower.append(at)
    return first
