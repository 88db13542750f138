"""Records as text: a record -> its description, and that of its op. Made once per signature and op."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from maya.trace.format import Flag, RecordKind
from maya.trace.reader import Trace
from maya.trace.signature_names import NAMING_KEYS, readable_kernel_names, signature_name
from maya.util.text import bytes_text

OPS = (RecordKind.OP, RecordKind.ANNOTATION)

_LONGEST_NAME = 100


class Descriptions:
    """The descriptions of one trace's records."""

    def __init__(self, trace: Trace, *, demangled: bool) -> None:
        self._trace = trace
        used = np.unique(trace.kernels()["signature"]).tolist()
        kernels = {str(trace.signature(number).get("kernel", "")) for number in used}
        self._kernel_names = readable_kernel_names(kernels) if demangled else {}
        self._of_signature: dict[int, str] = {}
        self._of_op: dict[int, str] = {}

    def name(self, number: int) -> str:
        """The name of the kernel, the function of the library, the direction of the copy in a signature; else ""."""
        return signature_name(self._trace.signature(number), self._kernel_names)

    def what(self, record: np.void) -> str:
        """The description of a record."""
        kind, number = int(record["kind"]), int(record["signature"])
        if kind in OPS:
            return self.op(int(record["op"]))
        if number not in self._of_signature:
            self._of_signature[number] = self._describe(number)
        from_graph = "(from a graph)" if record["flags"] & Flag.FROM_GRAPH else ""
        return " ".join(filter(None, [self._of_signature[number], _value_text(kind, int(record["value"])), from_graph]))

    def op(self, number: int) -> str:
        """The op with this number, its inputs and its sequence number."""
        if number not in self._of_op:
            self._of_op[number] = self._describe_op(number)
        return self._of_op[number]

    def _describe(self, number: int) -> str:
        signature = self._trace.signature(number)
        if "kernel" in signature:
            grid, block = ("x".join(map(str, signature[key])) for key in ("grid", "block"))
            name = shortened(self.name(number), _LONGEST_NAME)
            return f"{name} grid {grid} block {block} shared {signature['shared']}"
        if signature.keys() == {"bytes"}:
            return bytes_text(signature["bytes"])
        rest = [f"{key}={_compact(value)}" for key, value in signature.items() if key not in NAMING_KEYS]
        return " ".join(filter(None, [self.name(number), *rest]))

    def _describe_op(self, number: int) -> str:
        op = self._trace.op(number)
        if op is None:
            return f"op {number}"
        sequence = f" sequence {op['sequence']}" if op["sequence"] >= 0 else ""
        return f"{op['name']}({', '.join(map(_input_text, op['inputs']))}) op {number}{sequence}"


def shortened(name: str, longest: int) -> str:
    """Shorten a kernel name: template arguments can have thousands of characters."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _value_text(kind: int, value: int) -> str:
    if kind in (RecordKind.MEMCPY, RecordKind.MEMSET):
        return bytes_text(value)
    if kind in (RecordKind.MALLOC, RecordKind.FREE):
        return f"at {value:#x}" if value >> 32 else f"handle {value}"
    if kind in (RecordKind.BLOCK_ALLOC, RecordKind.BLOCK_FREE):
        return f"block {value}"
    if kind in (RecordKind.EVENT_RECORD, RecordKind.STREAM_WAIT):
        return f"event {value}"
    if kind == RecordKind.GRAPH_LAUNCH:
        return f"graph {value}"
    if kind == RecordKind.HOST_DELAY:
        return f"{value / 1000:.3f} us"
    if kind == RecordKind.STREAM_CREATE:
        return f"priority {value - 2**64 if value >= 2**63 else value}"
    return ""


def _input_text(value: Any) -> str:
    """bfloat16[8, 4096] for a tensor; with strides only if it is not dense."""
    if value is None:
        return "None"
    if isinstance(value, list):
        return "[" + ", ".join(map(_input_text, value)) + "]"
    if not isinstance(value, dict) or "shape" not in value:
        return _compact(value)
    shape, strides = value["shape"], value.get("strides", [])
    text = f"{value.get('dtype', '')}[{', '.join(map(str, shape))}]"
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size > 1 and stride != expected:
            return f"{text} strides {strides}"
        expected *= size
    return text


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
