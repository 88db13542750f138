"""Prints a traceback that several ranks share only once.

In: MAYA_TRACEBACKS, a file that all ranks of an attempt share; empty: each rank prints its own, as where its output
goes to a file. Out: the first rank with a traceback prints it; the others add themselves to the file, and the launcher
says which these were. Tracebacks are equal if their frames are, and their messages but for the numbers in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType

VARIABLE = "MAYA_TRACEBACKS"


def fold_equal_tracebacks(environment: Mapping[str, str]) -> None:
    """Install the hook, before the program or torch install theirs around it. It takes the place of the interpreter's
    own, so that a program which asks whether there is a hook finds none."""
    path = environment.get(VARIABLE, "")
    if not path:
        return
    rank = environment.get("RANK", "0")
    before = sys.excepthook

    def print_unless_known(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # The interpreter sets it before it ends the program with an exception; others are shown by the program itself.
        is_last = getattr(sys, "last_value", None) is error
        if not (is_last and _is_known(path, rank, _key(kind, error, trace))):
            before(kind, error, trace)

    sys.excepthook = sys.__excepthook__ = print_unless_known


def _key(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(trace)]
    text = "".join(traceback.format_exception_only(kind, error))
    return hashlib.sha256(repr((frames, re.sub(r"\d+", "0", text))).encode()).hexdigest()[:16]


def _is_known(path: str, rank: str, key: str) -> bool:
    """Add a line `key rank` to the file; whether another rank has done so before."""
    try:
        with open(path, "a+", encoding="utf-8") as file:  # noqa: PTH123 - pathlib may not be imported yet
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = any(line.startswith(key) for line in file)
            file.write(f"{key} {rank}\n")
            file.flush()
    except OSError:
        return False
    return known


def ranks_by_traceback(path: str) -> list[list[int]]:
    """The ranks that ended with equal tracebacks, in the order of the file, which is removed."""
    groups: dict[str, list[int]] = {}
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                key, _, rank = line.partition(" ")
                groups.setdefault(key, []).append(int(rank))
        os.unlink(path)  # noqa: PTH108
    except (OSError, ValueError):
        return []
    return list(groups.values())
