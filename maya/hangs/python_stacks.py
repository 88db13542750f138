"""Parses the Python stacks of a rank, and classifies the wait that a stack shows.

In: a rank's answer to "stacks". Out: the frames of the main thread and of the other threads, innermost first.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_INSTALLED = re.compile(r"/(site|dist)-packages/")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[.\d]*/|^<|/rank_runtime/(zygote|absent_members)/")
_TORCH = re.compile(r"/torch/|/lib/python3[.\d]*/(?!site-packages)|^<|/rank_runtime/(zygote|absent_members)/")
_OURS = re.compile(r"/rank_runtime/(zygote|absent_members)/")
_WRAPPERS = ("c10d_logger.py",)
_SLEEP = re.compile(r"\bsleep\(")
_WORK_WAIT = re.compile(r"\.wait\(\s*\)")
_COLLECTIVE = re.compile(
    r"\b(barrier|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|reduce|gather\w*|scatter\w*|all_to_all\w*|"
    r"send|recv|isend|irecv|batch_isend_irecv)\("
)


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        """The source line; empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self) -> str:
        """`train.py:30`"""
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def is_torch(self) -> bool:
        """Whether the code belongs to torch or to Python itself."""
        return _TORCH.search(self.file) is not None

    @property
    def is_ours(self) -> bool:
        """Whether the code belongs to Maya: the virtual clock's sleep, the stand-in for Gloo."""
        return _OURS.search(self.file) is not None

    @property
    def is_library(self) -> bool:
        return _LIBRARY.search(self.file) is not None

    @property
    def is_installed(self) -> bool:
        return _INSTALLED.search(self.file) is not None


@dataclass(frozen=True)
class PythonThread:
    """A thread that runs Python code."""

    identity: int  # threading.get_ident(): pthread_self()
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Stacks:
    """All Python threads of a rank."""

    main: tuple[Frame, ...] = ()
    others: tuple[PythonThread, ...] = ()
    awaited_streams: tuple[int, ...] = ()  # CUDA streams that a host thread waits for
    conditions: tuple[range, ...] = ()  # addresses of the condition variables that signal the device's progress
    known: bool = False  # the rank has answered


class StackWait(Enum):
    """The kind of wait that a stack shows."""

    GROUP = "other ranks"  # in torch.distributed, outside of NCCL: store, Gloo
    SLEEP = "a sleep"
    ELSE = "something else"


def parse(answer: bytes) -> Stacks:
    """Parse an answer; lines that do not match are ignored."""
    head, _, dump = answer.decode(errors="replace").partition("python\n")
    main_thread, streams, conditions = "", [], []
    for line in head.splitlines():
        kind, _, value = line.partition(" ")
        if kind == "main":
            main_thread = value
        elif kind == "stream":
            streams.append(int(value))
        elif kind == "condition":
            address, size = value.split()
            conditions.append(range(int(address, 16), int(address, 16) + int(size)))
    main: tuple[Frame, ...] = ()
    others = []
    for name, frames in _threads(dump):
        if name == main_thread:
            main = frames
        elif frames:
            others.append(PythonThread(int(name, 16), frames))
    return Stacks(main, tuple(others), tuple(streams), tuple(conditions), known=bool(answer))


def _threads(dump: str) -> list[tuple[str, tuple[Frame, ...]]]:
    """The threads of a dump, without the current one, which writes the answer."""
    threads: list[tuple[str, list[Frame]]] = []
    answering = ""
    for line in dump.splitlines():
        started = re.match(r"(Current thread|Thread) (0x[0-9a-f]+)", line)
        if started:
            threads.append((started[2], []))
            answering = started[2] if started[1] == "Current thread" else answering
        found = _FRAME.match(line)
        if found and threads:
            number = int(found["line"]) if found["line"].isdigit() else 0
            threads[-1][1].append(Frame(found["file"], number, found["function"]))
    return [(name, tuple(frames)) for name, frames in threads if name != answering]


def kind_of_wait(stack: Sequence[Frame]) -> StackWait:
    """Classify the wait of a thread by its innermost frame."""
    frames = [frame for frame in stack if PurePath(frame.file).name not in _WRAPPERS and not frame.is_ours]
    if not frames:
        return StackWait.ELSE
    innermost = frames[0]
    if _SLEEP.search(innermost.source):
        return StackWait.SLEEP
    if "/torch/distributed/" in innermost.file:
        return StackWait.GROUP
    if not innermost.is_torch and (_WORK_WAIT.search(innermost.source) or _COLLECTIVE.search(innermost.source)):
        return StackWait.GROUP
    return StackWait.ELSE


def users_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of the user's own code, innermost first; for an installed program, those outside torch."""
    for library in (_LIBRARY, _TORCH):
        found = tuple(frame for frame in frames if not library.search(frame.file))
        if found:
            return found
    return ()


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code; for an installed program, the innermost frame outside torch."""
    for library in (_LIBRARY, _TORCH):
        for frame in frames:
            if not library.search(frame.file):
                return frame
    return None
