"""The host part of a rank's Kineto trace: ops, annotations and CUDA calls.

In: a `KinetoWindow`. Out: events, with flows from forward ops to their backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from maya.results.kineto_names import input_arguments
from maya.results.kineto_window import KinetoWindow
from maya.results.trace_events import Event, flow, span
from maya.trace import Flag, RecordKind, Trace

_CALLS = {
    RecordKind.KERNEL: "cudaLaunchKernel",
    RecordKind.LIBRARY: "cudaLaunchKernelExC",
    RecordKind.COLLECTIVE: "cudaLaunchKernelExC",
    RecordKind.MEMCPY: "cudaMemcpyAsync",
    RecordKind.MEMSET: "cudaMemsetAsync",
    RecordKind.MALLOC: "cudaMalloc",
    RecordKind.FREE: "cudaFree",
    RecordKind.EVENT_RECORD: "cudaEventRecord",
    RecordKind.STREAM_WAIT: "cudaStreamWaitEvent",
    RecordKind.HOST_FUNCTION: "cudaLaunchHostFunc",
    RecordKind.GRAPH_LAUNCH: "cudaGraphLaunch",
}
# Callback ids of CUPTI; 0 for other calls.
_NUMBERS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
}
_WAITS = {"stream": "cudaStreamSynchronize", "event": "cudaEventSynchronize", "device": "cudaDeviceSynchronize"}


def op_events(window: KinetoWindow) -> Iterator[Event]:
    """Ops and annotations."""
    trace, spans = window.group.rank_class.trace, window.spans
    records = trace.records
    forward: dict[int, tuple[int, int]] = {}  # sequence number -> thread and begin of the op that made it
    linked: set[int] = set()
    flows: list[Event] = []
    for position in window.positions:
        record = records[position]
        kind = int(record["kind"])
        if kind not in (RecordKind.OP, RecordKind.ANNOTATION):
            continue
        signature = trace.signature(int(record["signature"]))
        name = str(signature.get("op", ""))
        tid = window.threads[int(record["thread"])]
        begin, end = int(spans.begin[position]), int(spans.end[position])
        arguments: dict[str, Any] = {"External id": window.op_ids[int(record["op"])], "Record function id": 0}
        sequence = int(record["value"]) >> 32
        if kind == RecordKind.OP:
            if sequence != 0xFFFFFFFF:
                arguments |= {"Sequence number": sequence, "Fwd thread id": 0}
                if name.rstrip("0123456789").endswith("Backward"):
                    if sequence in forward and sequence not in linked:
                        linked.add(sequence)
                        flows.append(flow("fwdbwd", sequence, window.pid, *forward[sequence], ends=False))
                        flows.append(flow("fwdbwd", sequence, window.pid, tid, begin, ends=True))
                else:
                    forward.setdefault(sequence, (tid, begin))
            arguments |= input_arguments(signature.get("inputs", []))
        arguments["Ev Idx"] = arguments["External id"]
        category = "cpu_op" if kind == RecordKind.OP else "user_annotation"
        yield span(category, name, window.pid, tid, begin, end, arguments)
    yield from flows


def call_events(window: KinetoWindow) -> Iterator[Event]:
    """CUDA calls."""
    trace, spans = window.group.rank_class.trace, window.spans
    triton = _through_driver(trace)
    for position in window.positions:
        record = trace.records[position]
        kind, flags = int(record["kind"]), int(record["flags"])
        if flags & Flag.FROM_GRAPH or (kind == RecordKind.COLLECTIVE and flags & Flag.GROUPED):
            continue
        signature = trace.signature(int(record["signature"]))
        if kind == RecordKind.SYNCHRONIZE:
            name: str | None = _WAITS.get(str(signature.get("wait", "")), "cudaDeviceSynchronize")
        elif kind == RecordKind.COLLECTIVE and "members" in signature:
            continue
        else:
            name = _CALLS.get(RecordKind(kind)) if kind in _CALLS else None
        if name is None:
            continue
        category = "cuda_runtime"
        if kind == RecordKind.KERNEL and int(record["signature"]) in triton:
            category, name = "cuda_driver", "cuLaunchKernelEx"
        if signature.get("mapped"):
            category, name = "cuda_driver", "cuMemCreate" if kind == RecordKind.MALLOC else "cuMemRelease"
        arguments = {
            "External id": window.op_ids.get(int(record["op"]), 0),
            "cbid": _NUMBERS.get(name, 0),
            "correlation": window.correlations[position],
        }
        bounds = int(spans.begin[position]), int(spans.end[position])
        yield span(category, name, window.pid, window.threads[int(record["thread"])], *bounds, arguments)


def _through_driver(trace: Trace) -> frozenset[int]:
    """Signatures of kernels that are launched through the driver API, as Triton does: their names are not mangled."""
    used = np.unique(trace.kernels()["signature"]).tolist()
    names = {number: str(trace.signature(number).get("kernel", "")) for number in used}
    return frozenset(number for number, name in names.items() if not name.startswith("_Z"))
