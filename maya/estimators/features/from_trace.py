"""A trace -> the works in it: one for every distinct (signature, op) of its kernels, library calls, copies and memsets.

    for item in works_of(trace):
        item.work, item.count, item.name

A job launches millions of times but has hundreds of different works, so everything here is done once for each distinct
pair of signature and op. Work that a CUDA graph launches has no op: it is taken to be what the same kernel with the
same grid did under an op elsewhere in the trace (before the graph was captured, as a rule).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.estimators.features.extract import work_of
from maya.estimators.features.inductor import Sources
from maya.estimators.features.launch import Launch
from maya.estimators.features.tensors import parse_input
from maya.estimators.work import Work
from maya.trace import Kind, Trace
from maya.trace.reader import Records

_WHAT = {Kind.KERNEL: "kernel", Kind.LIBRARY: "library", Kind.MEMCPY: "copy", Kind.MEMSET: "memset"}
_OVER_LISTS = ("multi_tensor_apply", "FusedOptimizer")
_OPS_AROUND = 3


@dataclass(frozen=True)
class TracedWork:
    """One distinct work of a trace."""

    launch: Launch
    work: Work
    count: int  # launches


@dataclass(frozen=True)
class TracedWorks:
    """All works of a trace, and which of them each record is."""

    works: list[TracedWork]
    records: Records  # the kernels, library calls, copies and memsets, in order
    which: npt.NDArray[np.intp]  # for each of the records, the position of its work


def works_of(trace: Trace, inductor: str | Path | None = None) -> TracedWorks:
    """The works of a trace.

    `inductor` is the folder of the sources that torch.compile generated; by default a folder of that name beside the
    trace, if there is one. Without it, the sizes of compiled kernels are guessed from their grids.
    """
    beside = trace.path.parent / "inductor"
    if inductor is None and beside.is_dir():
        inductor = beside
    sources = Sources(inductor) if inductor is not None else None
    records = trace.select(*_WHAT)
    keys, which = _distinct(trace, records)
    _, first, counts = np.unique(which, return_index=True, return_counts=True)
    launches = [_launch(trace, records[at], blocks_before=int(keys["before"][at])) for at in first.tolist()]
    with_op = {(launch.what, launch.name, launch.grid, launch.block): launch for launch in launches if launch.inputs}
    works: list[TracedWork] = []
    for launch, count in zip(launches, counts.tolist(), strict=True):
        known = with_op.get((launch.what, launch.name, launch.grid, launch.block))
        if not launch.inputs and launch.what == "kernel" and known is not None:
            launch = replace(launch, op=known.op, inputs=known.inputs, around=known.around)
        works.append(TracedWork(launch, work_of(launch, sources), count))
    return TracedWorks(works, records, which)


def _distinct(trace: Trace, records: Records) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp]]:
    """For each record what tells works apart, and a number for each distinct combination, in order of appearance."""
    keys = np.zeros(
        len(records),
        dtype=[("kind", "<u4"), ("signature", "<u4"), ("op", "<u4"), ("value", "<u8"), ("before", "<u4")],
    )
    keys["kind"] = records["kind"]
    keys["signature"] = records["signature"]
    copied = (records["kind"] == Kind.MEMCPY) | (records["kind"] == Kind.MEMSET)
    keys["value"] = np.where(copied, records["value"], 0)
    ops = trace.ops
    at = np.searchsorted(ops["op"], records["op"])
    at = np.minimum(at, max(len(ops) - 1, 0))
    if len(ops):
        found = (ops["op"][at] == records["op"]) & (records["op"] != 0)
        keys["op"] = np.where(found & ~copied, ops["signature"][at], 0)
    _count_blocks_before(trace, records, keys)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return keys, rank[inverse.reshape(-1)]


def _count_blocks_before(trace: Trace, records: Records, keys: npt.NDArray[np.void]) -> None:
    """For kernels over lists of tensors: the blocks of the same op's launches before."""
    used = np.unique(records["signature"][records["kind"] == Kind.KERNEL])
    over_lists = {}
    for number in used.tolist():
        signature = trace.signature(number)
        name = str(signature.get("kernel", ""))
        if any(part in name for part in _OVER_LISTS):
            x, y, z = signature["grid"]
            over_lists[number] = (name, x * y * z)
    if not over_lists:
        return
    positions = np.flatnonzero(np.isin(records["signature"], np.array(sorted(over_lists))) & (records["op"] != 0))
    done: dict[tuple[int, str], int] = {}
    for at in positions.tolist():
        name, blocks = over_lists[int(records["signature"][at])]
        of = (int(records["op"][at]), name)
        keys["before"][at] = done.get(of, 0)
        done[of] = done.get(of, 0) + blocks


def _launch(trace: Trace, record: np.void, *, blocks_before: int) -> Launch:
    kind = Kind(int(record["kind"]))
    signature = trace.signature(int(record["signature"]))
    what = _WHAT[kind]
    if kind == Kind.MEMCPY:
        return Launch(what, str(signature.get("copy", "")), arguments=signature, bytes=int(record["value"]))
    if kind == Kind.MEMSET:
        return Launch(what, "memset", arguments=signature, bytes=int(record["value"]))
    op = trace.op_of(record)
    inputs = tuple(parse_input(value) for value in op["inputs"]) if op is not None else ()
    names = _around(trace, op)
    common: dict[str, Any] = {"op": str(op["name"]) if op is not None else "", "inputs": inputs, "around": names}
    if kind == Kind.LIBRARY:
        return Launch(what, str(signature.get("call", "")), arguments=signature, **common)
    grid, block = (_three(signature.get(key)) for key in ("grid", "block"))
    name = str(signature.get("kernel", ""))
    return Launch(what, name, grid=grid, block=block, blocks_before=blocks_before, **common)


def _around(trace: Trace, op: np.void | None) -> tuple[str, ...]:
    names: list[str] = []
    while op is not None and len(names) < _OPS_AROUND:
        op = trace.op(int(op["parent"]))
        if op is not None:
            names.append(str(op["name"]))
    return tuple(names)


@lru_cache(maxsize=4096)
def _sizes(x: int, y: int, z: int) -> tuple[int, int, int]:
    return x, y, z


def _three(value: Any) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in value) if value else (1, 1, 1)
    return _sizes(x, y, z)
