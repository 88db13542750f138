"""Standard input, output and error of Maya's commands, whatever they were started with: closed, a full disk, a pipe
that nobody reads any more, a terminal that is gone.

In: the descriptors 0, 1 and 2 of a process that begins. Out: all three are open, and `sys.stdin`, `sys.stdout` and
`sys.stderr` write to them without raising: for a launcher what cannot be shown is lost and the job goes on; a command
whose output is all there is of it ends as other Unix tools do.
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
    """Output is best effort."""
    _open_closed()
    _replace("stdout", _ignore)
    _replace("stderr", _ignore)


def begin_tool(name: str) -> None:
    """When the reader of its output has seen enough (| head), the command ends, by SIGPIPE and without a word; if its
    output cannot be written for another reason, it says so and fails. Messages on stderr are best effort."""

    def end(error: OSError) -> None:
        stream.on_error = _ignore  # what is still buffered is lost
        if isinstance(error, BrokenPipeError):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        print(f"{name}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        raise SystemExit(1)

    _open_closed()
    stream = _replace("stdout", end)
    _replace("stderr", _ignore)


def _open_closed() -> None:
    """Otherwise the next files to be opened would have these numbers, and get what is printed."""
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
