"""A trace as text: header, totals, then a line per record, or a table of launches.

In: a `Trace`. Out: the lines that `maya trace show FILE` prints.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timezone

import numpy as np

from maya.trace.counts import count_records
from maya.trace.describe import OPS, Descriptions, shortened
from maya.trace.flops import gemm_flops
from maya.trace.format import RecordKind
from maya.trace.reader import Records, Trace
from maya.trace.signature_names import kind_name
from maya.util.text import bytes_text

_DESCRIPTION_WIDTH = 110
_NAME_WIDTH = 200
_LAUNCHED = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.COLLECTIVE, RecordKind.MEMCPY, RecordKind.MEMSET)


def trace_lines(
    trace: Trace,
    *,
    limit: int | None = None,
    kinds: Collection[RecordKind] | None = None,
    ops: bool = True,
    demangle: bool = True,
    summary: bool = False,
) -> Iterator[str]:
    """The lines of `maya trace show`.

    `limit`: list at most this many records. `kinds`: list records of these kinds; by default all but ops and
    annotations. `ops`: name the op that each record came from. `summary`: count launches instead of listing records.
    """
    descriptions = Descriptions(trace, demangled=demangle)
    yield from _head(trace)
    yield ""
    yield from _launch_table(trace, descriptions) if summary else _listing(trace, descriptions, limit, kinds, ops)


def parse_kinds(names: Iterable[str]) -> frozenset[RecordKind]:
    """Kinds by name, as a user writes them: "kernel", "block-alloc"."""
    valid = {kind.name.lower(): kind for kind in RecordKind}
    found = set()
    for name in names:
        wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
        if wanted not in valid:
            near = difflib.get_close_matches(wanted, valid, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"There are no records of kind {name!r}.{hint} The kinds are: {', '.join(valid)}.")
        found.add(valid[wanted])
    return frozenset(found)


def _head(trace: Trace) -> Iterator[str]:
    header, totals = trace.header, count_records(trace)
    started = datetime.fromtimestamp(header.started_ns // 10**9, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = [str(header.rank), f"process {header.process}", f"started {started}", header.gpu]
    facts += [f"torch {header.torch_version}"] if header.torch_version else []
    facts += [f"CUDA {header.cuda_version}"] if header.cuda_version else []
    yield f"trace    {trace.path}, format version {header.version}"
    yield f"rank     {', '.join(facts)}"
    yield (
        f"records  {totals.records:,} in {totals.duration_ns / 1e9:.3f} s, {totals.ops:,} ATen ops, "
        f"threads: {totals.threads}, streams: {totals.streams}"
    )
    early = f"early: {trace.problem}; the records before that are complete"
    yield f"ended    {'normally' if trace.complete else early}"
    if trace.limit is not None:
        yield f"limit    {trace.limit.text()}"
    yield "kinds    " + ", ".join(f"{kind_name(kind)} {count:,}" for kind, count in totals.counts.items())
    if totals.bytes_copied:
        yield "copied   " + ", ".join(f"{way} {bytes_text(size)}" for way, size in sorted(totals.bytes_copied.items()))
    for found in totals.placeholder_reads:
        lost = f", {found.given_up:,} of them of large copies that were not kept" if found.given_up else ""
        size, where = bytes_text(found.bytes), found.at or "an unknown line"
        yield f"reads    {found.read} at {where} read {size} of placeholders {found.times:,} times{lost}"
    for choice in totals.choices:
        where = choice.at or "an unknown line"
        yield f"chooses  {choice.op} at {where} chose by rule from {choice.alternatives:,} {choice.times:,} times"
    for found in totals.assumed_reads:
        size, where = bytes_text(found.bytes), found.at or "an unknown line"
        yield f"reads    {found.read} at {where} read {size} that follows from such choices {found.times:,} times"


def _listing(
    trace: Trace, descriptions: Descriptions, limit: int | None, kinds: Collection[RecordKind] | None, ops: bool
) -> Iterator[str]:
    chosen = trace.select(*(set(RecordKind) - set(OPS) if kinds is None else kinds))
    listed = chosen if limit is None else chosen[:limit]
    yield f"{'time µs':>14}  thread  stream  {'kind':<13}  " + (
        f"{'what':<{_DESCRIPTION_WIDTH}}  from" if ops else "what"
    )
    for record in listed:
        is_op = int(record["kind"]) in OPS
        stream = "" if is_op else record["stream"]
        what = descriptions.what(record)
        if ops and record["op"] and not is_op:
            what = f"{what:<{_DESCRIPTION_WIDTH}}  {descriptions.op(int(record['op']))}"
        time = record["host_ns"] / 1000
        yield f"{time:>14.3f}  {record['thread']:>6}  {stream:>6}  {kind_name(int(record['kind'])):<13}  {what}"
    if len(listed) < len(chosen):
        yield f"… and {len(chosen) - len(listed):,} more"


def _launch_table(trace: Trace, descriptions: Descriptions) -> Iterator[str]:
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    for kind, number, count in _counted(trace.select(*_LAUNCHED)):
        row = kind_name(kind), descriptions.name(number)
        times, signatures = rows.get(row, (0, 0))
        rows[row] = times + count, signatures + 1
    yield f"{'times':>12}  {'signatures':>10}  {'kind':<10}  what"
    for (kind_text, name), (times, signatures) in sorted(rows.items(), key=lambda row: (-row[1][0], row[0])):
        yield f"{times:>12,}  {signatures:>10,}  {kind_text:<10}  {shortened(name, _NAME_WIDTH)}".rstrip()
    flops = gemm_flops(trace)
    if flops.any():
        yield ""
        yield f"{flops.sum():.4g} FLOPs in {np.count_nonzero(flops):,} matrix products of cuBLAS"


def _counted(records: Records) -> Iterator[tuple[int, int, int]]:
    """(kind, signature, how many) of the records."""
    both = records["kind"].astype(np.uint64) << np.uint64(32) | records["signature"]
    for value, count in zip(*(found.tolist() for found in np.unique(both, return_counts=True)), strict=True):
        yield value >> 32, value & 0xFFFFFFFF, count
