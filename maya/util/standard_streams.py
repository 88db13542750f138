"""Make standard input, output and error of Maya's commands robust: they may be closed, a full disk, a pipe without a
reader, or a closed terminal.

In: the descriptors 0, 1 and 2 of a new process. Out: all three are open, and `sys.stdin`, `sys.stdout` and `sys.stderr`
use them without raising. A launcher loses output that cannot be written, and its job goes on; a command whose only
result is its output ends as other Unix tools do.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_NAMES = ("stdin", "stdout", "stderr")

OnError = Callable[[OSError], None]


def begin_launcher() -> None:
    """Set up the streams of a launcher, whose output is best effort."""
    _open_closed()
    _replace("stdout", _ignore)
    _replace("stderr", _ignore)


def begin_tool(name: str) -> None:
    """Set up the streams of a command. If the reader of its output ends first (| head), the command ends silently by
    SIGPIPE; if output fails for another reason, it prints an error and fails. Output to stderr is best effort."""

    def end(error: OSError) -> None:
        stream.on_error = _ignore  # buffered output is lost
        if isinstance(error, BrokenPipeError):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        print(f"{name}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        raise SystemExit(1)

    _open_closed()
    stream = _replace("stdout", end)
    _replace("stderr", _ignore)


def _open_closed() -> None:
    """Open closed descriptors; otherwise the next opened files would get these numbers, and receive the output."""
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdin" else os.O_WRONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115


class _Output(io.FileIO):
    """A descriptor whose errors go to `on_error` instead of to the caller that prints."""

    def __init__(self, descriptor: int, on_error: OnError) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.on_error = on_error

    def write(self, content: Any) -> int:
        try:
            while (written := super().write(content)) is None:  # another process has made it non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            self.on_error(error)
            return memoryview(content).nbytes


def _replace(name: str, on_error: OnError) -> _Output:
    before = getattr(sys, name)
    with suppress(OSError, AttributeError):
        before.flush()
    output = _Output(_NAMES.index(name), on_error)
    text = io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=getattr(before, "encoding", "utf-8"),
        errors=getattr(before, "errors", "backslashreplace"),
        line_buffering=name == "stderr" or output.isatty(),
        write_through=getattr(before, "write_through", False),
    )
    setattr(sys, name, text)
    return output


def _ignore(error: OSError) -> None:
    pass
