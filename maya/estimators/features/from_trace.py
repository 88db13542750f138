"""A trace -> the works in it: one for every distinct (signature, op) of its kernels, library calls, copies and memsets.

    for item in works_of(trace):
        item.work, item.count, item.name

A job launches millions of times but has hundreds of different works, so everything here is done once for each distinct
pair of signature and op. A kernel that a CUDA graph launches has no op: it is taken to have that of the first kernel of
the same signature before it that had one (when the graph was captured, or before, as a rule).

`launch_of` makes a launch of what a record and its op say. A rank that asks how long something takes while the job runs
says the same (rank_runtime/messages.py, Ask), so both ways end in the same work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    works: list[TracedWork] = []
    for at, count in zip(first.tolist(), counts.tolist(), strict=True):
        key = keys[at]
        launch = launch_of(
            Kind(int(key["kind"])),
            trace.signature(int(key["signature"])),
            trace.signature(int(key["op"])) if key["op"] else None,
            int(key["value"]),
            int(key["before"]),
        )
        works.append(TracedWork(launch, work_of(launch, sources), count))
    return TracedWorks(works, records, which)


def launch_of(
    kind: Kind, signature: Mapping[str, Any], op: Mapping[str, Any] | None = None, size: int = 0, blocks_before: int = 0
) -> Launch:
    """A kernel, library call, copy or memset, as its signature and that of its op say; `size` is of copies and
    memsets, whose op does not matter."""
    what = _WHAT[kind]
    if kind == Kind.MEMCPY:
        return Launch(what, str(signature.get("copy", "")), arguments=signature, bytes=size)
    if kind == Kind.MEMSET:
        return Launch(what, "memset", arguments=signature, bytes=size)
    op_name = str(op.get("op", "")) if op else ""
    inputs = tuple(parse_input(value) for value in op.get("inputs", ())) if op else ()
    if kind == Kind.LIBRARY:
        return Launch(what, str(signature.get("call", "")), arguments=signature, op=op_name, inputs=inputs)
    grid, block = (_three(signature.get(key)) for key in ("grid", "block"))
    return Launch(
        what,
        str(signature.get("kernel", "")),
        grid=grid,
        block=block,
        op=op_name,
        inputs=inputs,
        blocks_before=blocks_before,
        pointers=tuple(int(size) for size in signature.get("pointers", ())),
        source=str(signature.get("source", "")),
        line=int(signature.get("line", 0)),
        tensor_cores=bool(signature.get("tensor_cores", False)),
    )


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
    _lend_ops(keys)
    _count_blocks_before(trace, records, keys)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return keys, rank[inverse.reshape(-1)]


def _lend_ops(keys: npt.NDArray[np.void]) -> None:
    """Give kernels without an op that of the first one before them with the same signature that has one."""
    kernels = keys["kind"] == Kind.KERNEL
    without = np.flatnonzero(kernels & (keys["op"] == 0))
    if not len(without):
        return
    having = np.flatnonzero(kernels & (keys["op"] != 0))
    signatures, first = np.unique(keys["signature"][having], return_index=True)
    if not len(signatures):
        return
    lenders = having[first]
    at = np.minimum(np.searchsorted(signatures, keys["signature"][without]), len(signatures) - 1)
    lends = (signatures[at] == keys["signature"][without]) & (lenders[at] < without)
    keys["op"][without[lends]] = keys["op"][lenders[at[lends]]]


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


@lru_cache(maxsize=4096)
def _sizes(x: int, y: int, z: int) -> tuple[int, int, int]:
    return x, y, z


def _three(value: Any) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in value) if value else (1, 1, 1)
    return _sizes(x, y, z)
