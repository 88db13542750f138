"""Writes the plain values of the variables in this rank's frames, for reports of hangs.

In: a connected socket and the identity of the main thread, the globals `connection` and `main_thread` with which
shim/device/stacks.c runs this file in the rank. Out: JSON over that socket:

    {"threads": [[{"file": ..., "line": ..., "function": ..., "values": {"step": 3, "self.done": false}}, ...], ...],
     "modules": {file: {"rank": 1, ...}}}

The main thread comes first; frames are innermost first. Values are numbers, texts, booleans and None; of a container
the length, as "len(name)". No code of the program runs: attributes are read from the instances' dictionaries, so there
are no properties, and nothing is formatted. Maya may not be importable in a rank, so this file needs only the standard
library.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from types import FrameType, ModuleType
from typing import Any

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|^<|/rank_runtime/")
_MOST_FRAMES = 48
_MOST_NAMES = 200
_MOST_MODULES = 64
_MOST_DEPTH = 2
_LONGEST = 200
_CONTAINERS = (list, tuple, dict, set, frozenset)


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _LONGEST  # type: ignore[arg-type]
    if kind is int:
        return -(1 << 63) <= value < 1 << 64  # type: ignore[operator]
    return kind in (bool, float) or value is None


def _add(found: dict[str, Any], name: str, value: object, attributes: Iterable[str], depth: int = 0) -> None:
    if len(found) >= _MOST_NAMES:
        return
    if _is_plain(value):
        found[name] = value
    elif type(value) in _CONTAINERS:
        found[f"len({name})"] = len(value)  # type: ignore[arg-type]
    elif depth < _MOST_DEPTH and not isinstance(value, type | ModuleType):
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if type(own) is dict:
            for attribute in attributes:
                if attribute in own:
                    _add(found, f"{name}.{attribute}", own[attribute], attributes, depth + 1)


def _values(frame: FrameType) -> dict[str, Any]:
    """The variables that the frame's function has, or uses from its module."""
    found: dict[str, Any] = {}
    used = frame.f_code.co_names
    local = dict(frame.f_locals)
    names = [*local, *(name for name in used if name in frame.f_globals and name not in local)]
    for name in names:
        if not name.startswith("__"):
            _add(found, name, local[name] if name in local else frame.f_globals[name], used)
    return found


def _frames(innermost: FrameType | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    frame = innermost
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        described = {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}
        found.append({**described, "values": _values(frame)})
        frame = frame.f_back
    return found


def _modules() -> dict[str, dict[str, Any]]:
    """The plain global variables of the program's own modules."""
    found: dict[str, dict[str, Any]] = {}
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") if type(module) is ModuleType else None
        if type(file) is not str or _LIBRARY.search(file) or len(found) >= _MOST_MODULES:
            continue
        values: dict[str, Any] = {}
        scope: Mapping[str, Any] = vars(module)
        for name, value in list(scope.items()):
            if not name.startswith("__"):
                _add(values, name, value, ())
        found[file] = values
    return found


def answer(descriptor: int, main_thread: int) -> None:
    """Write the values of all threads but this one."""
    current = sys._current_frames()
    others = sorted(set(current) - {main_thread, threading.get_ident()})
    threads = [_frames(current.get(thread)) for thread in (main_thread, *others)]
    content = json.dumps({"threads": threads, "modules": _modules()}).encode()
    while content:
        content = content[os.write(descriptor, content) :]


if "connection" in globals():  # run in a rank, not imported
    answer(globals()["connection"], globals()["main_thread"])
