"""Prints a traceback that several ranks share only once.

In: MAYA_TRACEBACKS, a file that all ranks of an attempt share; empty: each rank prints its own, as where its output
goes to a file. Out: the first rank with a traceback prints it; the others add themselves to the file, and the launcher
says which these were. Tracebacks are equal if their frames are, and their messages but for the rank's own number, times
and addresses. From a rank's first traceback on, its standard error goes to a file beside that file, which the launcher
shows (maya_fold_errors in shim/device/report.c), so that lines that tracebacks share are shown once as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

VARIABLE = "MAYA_TRACEBACKS"
_PASSING = re.compile(r"[IWEF]\d{4} (?=\d\d:)|\d{4}-\d\d-\d\d[ T]|\d\d:\d\d:\d\d(?:[.,]\d+)?|0x[0-9a-f]+")


def fold_equal_tracebacks(environment: Mapping[str, str], fold_errors: Callable[[], None]) -> None:
    """Install the hook, before the program or torch install theirs around it. It takes the place of the interpreter's
    own, so that a program which asks whether there is a hook finds none. `fold_errors` is called before a traceback
    that ends the program."""
    path = environment.get(VARIABLE, "")
    if not path:
        return
    rank = environment.get("RANK", "0")
    before = sys.excepthook

    def print_unless_known(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # The interpreter sets it before it ends the program with an exception; others are shown by the program itself.
        is_last = getattr(sys, "last_value", None) is error
        if is_last:
            with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
                sys.__stderr__.flush()  # type: ignore[union-attr]
            fold_errors()
        if not (is_last and _is_known(path, rank, _keys(kind, error, trace, rank))):
            before(kind, error, trace)

    sys.excepthook = sys.__excepthook__ = print_unless_known


def without_own(text: str, rank: str) -> str:
    """The text without what makes equal lines of several ranks differ: the rank's own number, times and addresses."""
    return _PASSING.sub("", re.sub(rf"(?i)(rank\W{{0,2}}){rank}\b", r"\1", text))


def _keys(kind: type[BaseException], error: BaseException, trace: TracebackType | None, rank: str) -> tuple[str, str]:
    """Of tracebacks that are alike, and of those that are equal."""
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(trace)]
    text = without_own("".join(traceback.format_exception_only(kind, error)), rank)
    alike, equal = (
        hashlib.sha256(repr((frames, each)).encode()).hexdigest()[:16] for each in (re.sub(r"\d+", "0", text), text)
    )
    return alike, equal


def _is_known(path: str, rank: str, keys: tuple[str, str]) -> bool:
    """Add a line `alike equal rank` to the file; whether another rank with an equal traceback has done so before."""
    try:
        with open(path, "a+", encoding="utf-8") as file:  # noqa: PTH123 - pathlib may not be imported yet
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = any(line.split()[1] == keys[1] for line in file)
            file.write(f"{keys[0]} {keys[1]} {rank}\n")
            file.flush()
    except (OSError, IndexError):
        return False
    return known


@dataclass
class AlikeTracebacks:
    """Ranks that ended with tracebacks that differ in numbers at most."""

    ranks: list[int] = field(default_factory=list)  # in the order in which they ended
    texts: set[str] = field(default_factory=set)  # keys of different ones


def alike_tracebacks(path: str) -> list[AlikeTracebacks]:
    """What the ranks have noted in the file."""
    groups: dict[str, AlikeTracebacks] = {}
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            for line in file:
                alike, equal, rank = line.split()
                group = groups.setdefault(alike, AlikeTracebacks())
                group.ranks.append(int(rank))
                group.texts.add(equal)
    except (OSError, ValueError):
        return []
    return list(groups.values())
