"""Assumptions that show in traces: placeholder values that the script reads or routes by, and compute that is missing.

In: the traces of a run, one for each rank class. Out: `Assumption`s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from maya.assumptions import (
    BRANCHES,
    EMPTY_GEMMS,
    NOT_KEPT,
    PLACEHOLDERS,
    ROUTING,
    ROUTING_READS,
    Assumption,
    Place,
)
from maya.results.read_uses import ReadUse, use_of_read
from maya.trace import PlaceholderRead, RecordKind, Trace, count_records
from maya.util.text import share_text

_LARGEST_SOURCE = 4 << 20  # bytes
_READS = {"aten::_local_scalar_dense": "item()", "aten::copy_": "copy to the host"}


def trace_assumptions(traces: Sequence[Trace], routed_share: float | None = None) -> list[Assumption]:
    """The assumptions that the traces of a run show. `routed_share`: of device time, that hangs on assumed routing."""
    reads = [_reads(trace) for trace in traces]
    routed = [_assumed_reads(trace) for trace in traces]
    # If the host reads neither placeholder values nor choices, the script means its empty GEMMs.
    empty = [_empty_gemms(trace) for trace, *read in zip(traces, reads, routed, strict=True) if any(read)]
    found = _routing(traces, routed_share)
    if places := _places(routed):
        found.append(
            Assumption(
                ROUTING_READS,
                "the script reads sizes and values that follow from this routing",
                places,
                "a metric among them says nothing about a real run",
            )
        )
    if places := _places(reads):
        uses = _uses_of(places, traces)
        if branches := _branches(uses):
            found.append(
                Assumption(
                    BRANCHES,
                    "branches of the script depend on placeholder values",
                    branches,
                    "a real run may take others (early stopping, best checkpoint, NaN checks)",
                )
            )
        found.append(
            Assumption(
                PLACEHOLDERS,
                "the script reads placeholder values, which say nothing about a real run",
                places,
                _consequence(uses),
            )
        )
    if places := _places([_reads_not_kept(trace) for trace in traces]):
        found.append(
            Assumption(
                NOT_KEPT,
                "some of these values are from large copies whose contents were not kept",
                places,
                "to keep more, raise MAYA_KEPT_BYTES and --copy-bytes (docs/values.md)",
            )
        )
    if places := _places(empty):
        total = sum(place.times for place in places)
        found.append(
            Assumption(
                EMPTY_GEMMS,
                f"{total:,} GEMM{'s have' if total > 1 else ' has'} zero rows (experts without tokens?)",
                places,
                "their compute is missing from the prediction",
            )
        )
    return found


def _uses_of(places: Sequence[Place], traces: Sequence[Trace]) -> list[tuple[Place, ReadUse | None]]:
    """The uses of each read, as far as the script's files say; None: not known. A file that has changed since the run
    says nothing."""
    started_ns = min(trace.header.started_ns for trace in traces)
    found = []
    for place in places:
        file, _, line = place.at.rpartition(":")
        source = _source(file, started_ns) if line.isdigit() else None
        found.append((place, None if source is None else use_of_read(source, int(line))))
    return found


def _source(file: str, started_ns: int) -> str | None:
    path = Path(file)
    try:
        status = path.stat()
        if status.st_mtime_ns > started_ns or status.st_size > _LARGEST_SOURCE:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _branches(uses: Sequence[tuple[Place, ReadUse | None]]) -> tuple[Place, ...]:
    """The branches that depend on reads; `times` counts the reads."""
    times: Counter[tuple[str, str]] = Counter()
    for place, use in uses:
        file = place.at.rpartition(":")[0]
        for branch in use.branches if use is not None else ():
            times[branch.what, f"{file}:{branch.line}"] += place.times
    return _places([times])


def _consequence(uses: Sequence[tuple[Place, ReadUse | None]]) -> str:
    if all(use is not None and use.is_printed_only for _, use in uses):
        return "they are printed, and no branch depends on them"
    if any(use is not None and use.branches for _, use in uses):
        return "other code may depend on them as well"
    return "if it branches on them (early stopping, loss scaling, NaN checks), a real run may do something else"


def _routing(traces: Sequence[Trace], routed_share: float | None) -> list[Assumption]:
    counts = [count_records(trace) for trace in traces]
    # Where marks were lost on the way to a read, it is not known which choice it follows from.
    all_route = any(of_trace.assumed_reads for of_trace in counts) and not any(
        choice.routes for of_trace in counts for choice in of_trace.choices
    )
    choices = [[one for one in of_trace.choices if one.routes or all_route] for of_trace in counts]
    places = _places(
        [
            Counter({(f"{one.op.removeprefix('aten::')} of {one.alternatives}", one.at): one.times for one in of_trace})
            for of_trace in choices
        ]
    )
    skews = {(one.skew, one.seed) for of_trace in choices for one in of_trace}
    if not places:
        return []
    skew, seed = max(skews)
    if skew == 1:
        statement = "even routing: choices among placeholder scores (of experts) are spread evenly"
        consequence = "a real router is less even; --moe-skew FACTOR shows the effect"
    else:
        statement = (
            f"uneven routing: of choices among placeholder scores (of experts), the most frequent is made {skew:g} "
            f"times as often as on average (--moe-skew, seed {seed})"
        )
        consequence = "a real router chooses in another way"
    if routed_share is not None:
        consequence = f"{share_text(routed_share)} of device time works on what they pick; {consequence}"
    return [Assumption(ROUTING, statement, places, consequence)]


def _assumed_reads(trace: Trace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for read in count_records(trace).assumed_reads:
        found[_read_text(read), read.at] += read.times
    return found


def _reads(trace: Trace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for read in count_records(trace).placeholder_reads:
        found[_read_text(read), read.at] += read.times
    return found


def _reads_not_kept(trace: Trace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for read in count_records(trace).placeholder_reads:
        if read.given_up:
            found[_read_text(read), read.at] += read.given_up
    return found


def _read_text(read: PlaceholderRead) -> str:
    return _READS.get(read.read, read.read.removeprefix("aten::") or "a copy")


def _empty_gemms(trace: Trace) -> Counter[tuple[str, str]]:
    numbers, counts = np.unique(trace.records["signature"][trace.records["kind"] == RecordKind.OP], return_counts=True)
    found: Counter[tuple[str, str]] = Counter()
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        signature = trace.signature(number)
        if signature.get("empty"):
            found[str(signature["op"]).removeprefix("aten::"), str(signature.get("at", ""))] += count
    return found


def _places(of_traces: Sequence[Counter[tuple[str, str]]]) -> tuple[Place, ...]:
    """The places of all traces, most frequent first. A line that several ranks reach counts as on one rank."""
    most: Counter[tuple[str, str]] = Counter()
    for one in of_traces:
        most |= one
    places = [Place(what, at, times) for (what, at), times in most.items()]
    return tuple(sorted(places, key=lambda place: (-place.times, place.at == "", place.at, place.what)))
