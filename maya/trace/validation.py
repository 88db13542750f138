"""Checks that a decoded trace can mean something: its checksums show damage on the way, not a faulty writer.

In: records, or some of their columns, and the strings of a trace. Out: nothing, or a `TraceError` with the file, the
record or string, and the reason. After it, numbers of strings, kinds and signatures can be relied on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.trace.format import RecordKind

Columns = Mapping[str, npt.NDArray[Any]] | npt.NDArray[np.void]

_OPS = frozenset((RecordKind.OP, RecordKind.ANNOTATION))
_KINDS = np.isin(np.arange(256), np.array(list(RecordKind)))
_LARGEST = 1 << 60  # of a size or count in a signature ...
_LARGEST_WORD = 1 << 64  # ... and of an argument of a library call
_LARGEST_TIME = 1 << 60  # ns: 36 years
_LARGEST_STREAM = 1 << 24
_MOST_MEMBERS = 1 << 24
_DEEPEST = 16  # of lists in lists
_REMEDY = "Record it again."


class TraceError(ValueError):
    """The file is not a trace that this version can read."""


def check_columns(path: Path, columns: Columns, strings: Sequence[str]) -> None:
    """Check the numbers in the columns that were read."""
    names = columns.dtype.names if isinstance(columns, np.ndarray) else columns
    assert names is not None
    _refuse(path, ~_KINDS[columns["kind"]], "is of an unknown kind", columns["kind"])
    if "signature" in names:
        _refuse(
            path,
            columns["signature"] >= len(strings),
            f"refers to a string that is not among the {len(strings)}",
            columns["signature"],
        )
    if "thread" in names:
        _refuse(path, columns["thread"] == 0, "is of no thread", columns["thread"])
    if "host_ns" in names:
        _refuse(path, columns["host_ns"] > _LARGEST_TIME, "has an impossible time", columns["host_ns"])
    if "stream" in names:
        is_op = (columns["kind"] == RecordKind.OP) | (columns["kind"] == RecordKind.ANNOTATION)
        impossible = (columns["stream"] > _LARGEST_STREAM) & ~is_op
        _refuse(path, impossible, "is of an impossible stream", columns["stream"])
    if "value" in names:
        has_amount = np.isin(columns["kind"], np.array(_AMOUNTS, dtype=np.uint8))
        _refuse(path, has_amount & (columns["value"] > _LARGEST), "has an impossible value", columns["value"])


_AMOUNTS = (
    RecordKind.MEMCPY,
    RecordKind.MEMSET,
    RecordKind.COLLECTIVE,
    RecordKind.PLACEHOLDER_READ,
    RecordKind.HOST_DELAY,
    RecordKind.CHOICE,
)


def _refuse(path: Path, wrong: npt.NDArray[np.bool_], what: str, values: npt.NDArray[Any]) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TraceError(f"{path} is damaged: record {at} {what}: {int(values[at])}. {_REMEDY}")


def check_signatures(path: Path, columns: Columns, strings: Sequence[str]) -> None:
    """Check the signature of every kind of record that has one."""
    both = columns["kind"].astype(np.uint64) << np.uint64(32) | columns["signature"]
    for pair in np.unique(both).tolist():
        kind, number = pair >> 32, pair & 0xFFFFFFFF
        if kind in _CHECKS and (number or kind in _NEEDED):
            check_signature(path, number, strings[number], RecordKind(kind))


def check_signature(path: Path, number: int, text: str, kind: RecordKind) -> None:
    """Check the signature of a record of this kind."""
    try:
        signature = json.loads(text) if text else {}
        if not isinstance(signature, dict):
            raise ValueError("it is no JSON object")
        if kind not in _OPS:  # whose arguments may be any numbers: slices end at 2**63 - 1
            own = {key: value for key, value in signature.items() if key != "from"}
            _check_plain(own, _DEEPEST, _LARGEST_WORD if kind == RecordKind.LIBRARY else _LARGEST)
        _CHECKS[kind](signature)
    except (ValueError, KeyError, RecursionError) as error:
        name = kind.name.lower().replace("_", " ")
        shown = text if len(text) <= 80 else f"{text[:79]}…"
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TraceError(
            f"{path} is damaged: string {number}, signature of record kind {name}: {reason}: {shown!r}. {_REMEDY}"
        ) from error


def _check_plain(value: Any, depth: int, largest: int) -> None:
    """Refuse whole numbers with which no later computation can work."""
    if depth == 0:
        raise ValueError("it has lists in lists in lists")
    if isinstance(value, int) and not -largest <= value <= largest:
        raise ValueError(f"{value} is not possible")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(inner, depth - 1, largest)


# ---- fields of signatures ----


def _text(signature: Mapping[str, Any], key: str) -> str:
    value = signature[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _number(signature: Mapping[str, Any], key: str, least: int = 0) -> int:
    value = signature[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key} is no whole number from {least} on")
    return value


def _numbers(signature: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Numbers that may be missing."""
    for key in keys:
        if key in signature:
            _number(signature, key)


def _list(signature: Mapping[str, Any], key: str, count: int | None = None) -> None:
    values = signature[key]
    wrong = not isinstance(values, list) or (count is not None and len(values) != count)
    if wrong or not all(type(value) is int and 0 <= value <= _LARGEST for value in values):
        raise ValueError(f"{key} is no list of {'whole numbers' if count is None else f'{count} whole numbers'}")


def _kernel(signature: Mapping[str, Any]) -> None:
    _text(signature, "kernel")
    for key in ("grid", "block"):
        _list(signature, key, 3)
    _number(signature, "shared")
    _numbers(signature, ("elements", "outputs", "before", "line", "registers"))
    if "pointers" in signature:
        _list(signature, "pointers")
    if "from" in signature:
        if not isinstance(signature["from"], dict):
            raise ValueError("from is no signature of an op")
        _op(signature["from"])


def _op(signature: Mapping[str, Any]) -> None:
    if "op" in signature:
        _text(signature, "op")
    _numbers(signature, ("optimizer",))
    if not isinstance(signature.get("inputs", []), list):
        raise ValueError("inputs is no list")
    for value in signature.get("inputs", ()):
        _input(value)


def _input(value: Any) -> None:
    if isinstance(value, list):
        for inner in value:
            _input(inner)
    elif isinstance(value, dict) and "shape" in value:
        if not isinstance(value.get("dtype", ""), str):
            raise ValueError("dtype is no text")
        for key in ("shape", "strides"):
            sizes = value.get(key, [])
            if not isinstance(sizes, list) or not all(
                type(each) is int and abs(each) <= _LARGEST_WORD for each in sizes
            ):
                raise ValueError(f"{key} is no list of whole numbers")


def _collective(signature: Mapping[str, Any]) -> None:
    _text(signature, "call")
    _number(signature, "communicator")
    ranks = _number(signature, "ranks", 1)
    if ranks > _MOST_MEMBERS:
        raise ValueError(f"{ranks} ranks are not possible")
    if _number(signature, "rank") >= ranks:
        raise ValueError(f"there is no rank {signature['rank']} among {ranks}")
    if "members" in signature:
        _number(signature, "instance")
        if _members(_text(signature, "members")) != ranks:
            raise ValueError(f"members are not {ranks}")
        return
    _number(signature, "count")
    _text(signature, "dtype")
    _numbers(signature, ("shared_bytes",))
    for key in ("peer", "root"):
        if key in signature and not -1 <= _number(signature, key, -1) < ranks:
            raise ValueError(f"{key} is none of {ranks} ranks")


def _members(text: str) -> int:
    """How many numbers "0-56:8,3" names."""
    count = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        count += len(range(int(first), int(last or first) + 1, int(step or 1)))
    return count


def _size(signature: Mapping[str, Any]) -> None:
    _numbers(signature, ("bytes",))


def _synchronise(signature: Mapping[str, Any]) -> None:
    if _text(signature, "wait") not in ("stream", "event", "device"):
        raise ValueError("wait is none of stream, event, device")


def _stream(signature: Mapping[str, Any]) -> None:
    _numbers(signature, ("home",))


def _read(signature: Mapping[str, Any]) -> None:
    _text(signature, "read")
    _text(signature, "at")


def _choice(signature: Mapping[str, Any]) -> None:
    _text(signature, "choice")
    _text(signature, "at")
    _number(signature, "alternatives")
    _numbers(signature, ("skew", "seed"))


# A recorder without memory leaves out other signatures.
_NEEDED = frozenset((RecordKind.COLLECTIVE, RecordKind.CHOICE))
_CHECKS: Mapping[int, Callable[[Mapping[str, Any]], object]] = {
    RecordKind.OP: _op,
    RecordKind.ANNOTATION: _op,
    RecordKind.KERNEL: _kernel,
    RecordKind.LIBRARY: lambda signature: _text(signature, "call"),
    RecordKind.MEMCPY: lambda signature: None,
    RecordKind.MEMSET: lambda signature: None,
    RecordKind.MALLOC: _size,
    RecordKind.FREE: _size,
    RecordKind.BLOCK_ALLOC: _size,
    RecordKind.BLOCK_FREE: _size,
    RecordKind.SYNCHRONIZE: _synchronise,
    RecordKind.COLLECTIVE: _collective,
    RecordKind.STREAM_CREATE: _stream,
    RecordKind.PLACEHOLDER_READ: _read,
    RecordKind.THREAD: lambda signature: None,
    RecordKind.CHOICE: _choice,
}
