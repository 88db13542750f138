"""Reads plain values from a pickle without unpickling it.

In: bytes that claim to be a pickle. Out: its value: None, bools, numbers, texts, lists, tuples and dictionaries. The
bytes come from a process that may not be what it claims to be, so nothing in them is executed: opcodes are only decoded
(pickletools), and one that names a class, calls anything or refers outside is an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
)
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset(("PROTO", "FRAME"))


class PlainPickleError(ValueError):
    """The bytes are no pickle of plain values."""


def plain_value(data: bytes) -> Any:
    """The value of a pickle."""
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return reader.pop()
            reader.execute(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise PlainPickleError(f"no pickle of plain values: {error}") from error
    raise PlainPickleError("no pickle of plain values: it is cut short")


class _Reader:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self._stack.pop()

    def execute(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            self._stack.append(argument)
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._marks.append(len(self._stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        else:
            self._combine(name)

    def _combine(self, name: str) -> None:
        """Opcodes that take values from the stack."""
        if name == "APPEND":
            value = self.pop()
            self._list().append(value)
        elif name == "APPENDS":
            values = self._since_mark()
            self._list().extend(values)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self._dictionary()[key] = value
        elif name == "SETITEMS":
            items = self._since_mark()
            self._dictionary().update(zip(items[::2], items[1::2], strict=True))
        elif name == "TUPLE":
            self._stack.append(tuple(self._since_mark()))
        elif name in _SMALL_TUPLES:
            count = _SMALL_TUPLES[name]
            values, self._stack[-count:] = self._stack[-count:], []
            self._stack.append(tuple(values))
        else:
            raise PlainPickleError(f"opcode {name}")

    def _since_mark(self) -> list[Any]:
        first = self._marks.pop()
        values, self._stack[first:] = self._stack[first:], []
        return values

    def _list(self) -> list[Any]:
        top = self._stack[-1]
        if not isinstance(top, list):
            raise PlainPickleError("values are appended to something that is no list")
        return top

    def _dictionary(self) -> dict[Any, Any]:
        top = self._stack[-1]
        if not isinstance(top, dict):
            raise PlainPickleError("items are set in something that is no dictionary")
        return top
