"""What traces show of values that nothing computed.

In: the traces of a run, one for each behaviour. Out: `Assumption`s: the script reads placeholder values, and compute is
missing because counts came from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from maya.assumptions import EMPTY_PRODUCTS, GIVEN_UP, PLACEHOLDERS, Assumption, Place
from maya.trace import PlaceholderRead, RecordKind, Trace, count_records

_READS = {"aten::_local_scalar_dense": "item()", "aten::copy_": "copy to the host"}


def trace_assumptions(traces: Sequence[Trace]) -> list[Assumption]:
    """What the traces of ranks, one for each behaviour, show."""
    reads = [_reads(trace) for trace in traces]
    # Without placeholder values that the host reads, a product of nothing is what the script wants.
    empty = [_empty_products(trace) for trace, read in zip(traces, reads, strict=True) if read]
    found = []
    if places := _places(reads):
        found.append(
            Assumption(
                PLACEHOLDERS,
                "the script reads placeholder values, which say nothing about a real run",
                places,
                "if it decides by them (early stopping, loss scaling, NaN checks), a real run may take another course",
            )
        )
    if places := _places([_reads_given_up(trace) for trace in traces]):
        found.append(
            Assumption(
                GIVEN_UP,
                "some of these reads are of large copies whose contents were not kept",
                places,
                "to keep more, raise MAYA_KEPT_BYTES and --copy-bytes (docs/values.md)",
            )
        )
    if places := _places(empty):
        total = sum(place.times for place in places)
        found.append(
            Assumption(
                EMPTY_PRODUCTS,
                f"{total:,} GEMM{'s' if total > 1 else ''} got zero rows (experts without tokens?)",
                places,
                "their compute is missing from the prediction",
            )
        )
    return found


def _reads(trace: Trace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for read in count_records(trace).made_up_reads:
        found[_read_text(read), read.at] += read.times
    return found


def _reads_given_up(trace: Trace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for read in count_records(trace).made_up_reads:
        if read.given_up:
            found[_read_text(read), read.at] += read.given_up
    return found


def _read_text(read: PlaceholderRead) -> str:
    return _READS.get(read.read, read.read.removeprefix("aten::") or "a copy")


def _empty_products(trace: Trace) -> Counter[tuple[str, str]]:
    numbers, counts = np.unique(trace.records["signature"][trace.records["kind"] == RecordKind.OP], return_counts=True)
    found: Counter[tuple[str, str]] = Counter()
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        signature = trace.signature(number)
        if signature.get("empty"):
            found[str(signature["op"]).removeprefix("aten::"), str(signature.get("at", ""))] += count
    return found


def _places(of_traces: Sequence[Counter[tuple[str, str]]]) -> tuple[Place, ...]:
    """Those of all traces, most frequent first. Of ranks that come to the same line, one counts."""
    most: Counter[tuple[str, str]] = Counter()
    for one in of_traces:
        most |= one
    places = [Place(what, at, times) for (what, at), times in most.items()]
    return tuple(sorted(places, key=lambda place: (-place.times, place.at == "", place.at, place.what)))
