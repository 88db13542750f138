"""A trace -> its kernels: one for every distinct (signature, op) of kernel launches, library calls, copies and memsets.

    for item in kernels_of(trace).kernels:
        item.kernel, item.count

A job launches millions of times but has hundreds of distinct kernels, so everything here is done once per distinct pair
of signature and op. No op is running when a CUDA graph launches a kernel: the kernel's signature has the op that was
running during capture.

`launch_of` makes a launch from the fields of a record and its op. A rank that asks for a duration during the job sends
the same fields (rank_runtime/messages.py, Ask), so both ways give the same kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.estimators.features.extract import kernel_of
from maya.estimators.features.inductor import InductorSources
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import parse_input
from maya.estimators.kernel import Kernel
from maya.trace import RecordKind, Trace, TraceError
from maya.trace.reader import Records

_WHAT = {
    RecordKind.KERNEL: "kernel",
    RecordKind.LIBRARY: "library",
    RecordKind.MEMCPY: "copy",
    RecordKind.MEMSET: "memset",
}


@dataclass(frozen=True)
class TracedKernel:
    """One distinct kernel of a trace."""

    launch: KernelLaunch
    kernel: Kernel
    count: int  # number of launches


@dataclass(frozen=True)
class TracedKernels:
    """All distinct kernels of a trace, and the kernel of each record."""

    kernels: list[TracedKernel]
    records: Records  # the kernels, library calls, copies and memsets, in order
    which: npt.NDArray[np.intp]  # per record: the index of its kernel


def kernels_of(trace: Trace, inductor: str | Path | None = None) -> TracedKernels:
    """The kernels of a trace.

    `inductor` is the folder of the sources that torch.compile generated; by default a folder of that name beside the
    trace, if there is one. Without it, the sizes of compiled kernels are guessed from their grids.
    """
    beside = trace.path.parent / "inductor"
    if inductor is None and beside.is_dir():
        inductor = beside
    sources = InductorSources(inductor) if inductor is not None else None
    records = trace.select(*_WHAT)
    keys, which = _distinct(trace, records)
    _, first, counts = np.unique(which, return_index=True, return_counts=True)
    kernels: list[TracedKernel] = []
    for at, count in zip(first.tolist(), counts.tolist(), strict=True):
        key = keys[at]
        try:
            launch = launch_of(
                RecordKind(int(key["kind"])),
                trace.signature(int(key["signature"])),
                trace.signature(int(key["op"])) if key["op"] else None,
                int(key["value"]),
            )
            kernels.append(TracedKernel(launch, kernel_of(launch, sources), count))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            number = int(key["signature"])
            raise TraceError(
                f"{trace.path}: the kernel of string {number} makes no sense ({type(error).__name__}: {error}): "
                f"{trace.strings[number][:200]!r}. Record it again; if that does not help, report it as a bug of Maya."
            ) from error
    return TracedKernels(kernels, records, which)


def launch_of(
    kind: RecordKind, signature: Mapping[str, Any], op: Mapping[str, Any] | None = None, size: int = 0
) -> KernelLaunch:
    """A launch from the signatures of its record and its op; `size`: bytes of a copy or memset, whose op does not
    matter."""
    what = _WHAT[kind]
    if kind == RecordKind.MEMCPY:
        return KernelLaunch(what, str(signature.get("copy", "")), arguments=signature, bytes=size)
    if kind == RecordKind.MEMSET:
        return KernelLaunch(what, "memset", arguments=signature, bytes=size)
    op = signature.get("from", op)
    op_name = str(op.get("op", "")) if op else ""
    inputs = tuple(parse_input(value) for value in op.get("inputs", ())) if op else ()
    if kind == RecordKind.LIBRARY:
        return KernelLaunch(what, str(signature.get("call", "")), arguments=signature, op=op_name, inputs=inputs)
    grid, block = (_three(signature.get(key)) for key in ("grid", "block"))
    before = signature.get("before")
    return KernelLaunch(
        what,
        str(signature.get("kernel", "")),
        grid=grid,
        block=block,
        op=op_name,
        inputs=inputs,
        elements=int(signature.get("elements", 0)),
        outputs=int(signature.get("outputs", 0)),
        before=None if before is None else int(before),
        pointers=tuple(int(size) for size in signature.get("pointers", ())),
        source=str(signature.get("source", "")),
        line=int(signature.get("line", 0)),
        tensor_cores=bool(signature.get("tensor_cores", False)),
    )


def _distinct(trace: Trace, records: Records) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp]]:
    """The fields that distinguish kernels, per record, and a number per distinct combination, in order of
    appearance."""
    keys = np.zeros(
        len(records),
        dtype=[("kind", "<u4"), ("signature", "<u4"), ("op", "<u4"), ("value", "<u8")],
    )
    keys["kind"] = records["kind"]
    keys["signature"] = records["signature"]
    copied = (records["kind"] == RecordKind.MEMCPY) | (records["kind"] == RecordKind.MEMSET)
    keys["value"] = np.where(copied, records["value"], 0)
    ops = trace.ops
    at = np.searchsorted(ops["op"], records["op"])
    at = np.minimum(at, max(len(ops) - 1, 0))
    if len(ops):
        found = (ops["op"][at] == records["op"]) & (records["op"] != 0)
        keys["op"] = np.where(found & ~copied, ops["signature"][at], 0)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return keys, rank[inverse.reshape(-1)]


@lru_cache(maxsize=4096)
def _sizes(x: int, y: int, z: int) -> tuple[int, int, int]:
    return x, y, z


def _three(value: Any) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in value) if value else (1, 1, 1)
    return _sizes(x, y, z)
