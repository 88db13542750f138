"""Begin and end of every op, annotation and CUDA call on the host of one rank, for its Kineto trace.

In: a trace, the host cursor after each of its records, and the script's own time before each (`RankDetail`). Out:
`HostSpans`.

The cursor of a record is the time at which its call returned. A call began earlier by its cost; a call that waited for
the device began after the record before it and the ops since then. An op ends with its own record. The cursor does not
say when the op began, only how many ops began since the last record of its thread: they are assumed to have begun at
equal distances, so that the innermost began last, right before the first call inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maya.replay.run_settings import HostCosts
from maya.replay.thread_groups import thread_groups
from maya.trace import Flag, RecordKind, Trace
from maya.util.arrays import Indices, Integers

_OPS = (RecordKind.OP, RecordKind.ANNOTATION)


@dataclass(frozen=True, eq=False)
class HostSpans:
    """For each record of a trace: when its call, op or annotation began and ended on the host."""

    begin: Integers
    end: Integers
    opened: Indices  # for an op or annotation: the first record inside it; for others the record itself


def host_spans(trace: Trace, host_ns: Integers, own_ns: Integers, costs: HostCosts) -> HostSpans:
    """The spans of all records."""
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


def _cursor_before(trace: Trace, host_ns: Integers) -> Integers:
    """For each record, the cursor of its thread group before it."""
    groups = thread_groups(trace.records, trace.strings)[trace.records["thread"]]
    before = np.zeros(len(host_ns), dtype=np.int64)
    for group in np.unique(groups).tolist():
        own = np.flatnonzero(groups == group)
        before[own[1:]] = host_ns[own[:-1]]
        before[own[0]] = host_ns[own[0]] if group else 0
    return before


def _begin_ops(
    trace: Trace, host_ns: Integers, before: Integers, own_ns: Integers, begin: Integers, all_opened: Indices
) -> None:
    """Fill in when ops and annotations began, and their first records."""
    records = trace.records
    is_op = np.isin(records["kind"], np.array(_OPS, dtype=np.uint8))
    for thread in np.unique(records["thread"]).tolist():
        own = np.flatnonzero(records["thread"] == thread)
        numbers = records["op"][own].astype(np.int64)
        first = _first_inside(numbers)
        ends = np.flatnonzero(is_op[own])
        opened = first[ends]  # for each op, the first record inside it
        # Among ops that have the same first record, the innermost, which has the highest number, comes last.
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


def _first_inside(numbers: Integers) -> Indices:
    """For each record of a thread, the first record inside its op, if it is the end of an op.

    While an op is open, all records of its thread have its number or a higher one. So the first record inside is the
    one after the last record with a lower number.
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
