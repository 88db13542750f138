"""Writes what ranks on other machines print to the launcher's standard output and error.

In: a node, a stream's name, content; from the link's thread. Out: the content, written by a thread of its own, so that
a slow or stopped terminal does not hold up the link; how much of a node's content has been written, so that the node
sends no more than fits; and streams that nobody reads any longer. Output that cannot be written is lost.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

_Item = tuple[str, str, bytes]


@dataclass(frozen=True)
class Console:
    """What the launcher's standard output and error are."""

    one_stream: bool = False  # the same file
    terminals: Mapping[str, Sequence[int]] = field(default_factory=dict)  # rows and columns of streams that are some

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Console:
        return Console(**fields)

    @staticmethod
    def of_this_process() -> Console:
        files, terminals = [], {}
        for stream in ("stdout", "stderr"):
            try:
                descriptor = getattr(sys, stream).fileno()
                files.append(os.fstat(descriptor))
                columns, rows = os.get_terminal_size(descriptor)
                terminals[stream] = (rows, columns)
            except (OSError, ValueError):  # closed, or no terminal
                continue
        return Console(len(files) == 2 and os.path.samestat(*files), terminals)


class ConsoleOutput:
    """The launcher's console. After close() everything has been written."""

    def __init__(self, written: Callable[[str, int], None], closed: Callable[[str], None]) -> None:
        """`written`: of a node, that many bytes. `closed`: nobody reads this stream. A thread calls them."""
        self._written = written
        self._closed = closed
        self._unread: set[str] = set()  # streams that nobody reads
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="console output", daemon=True)
        self._thread.start()

    def write(self, node: str, stream: str, content: bytes) -> None:
        self._queue.put((node, stream, content))

    def close(self) -> None:
        """Wait until everything has been written."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            node, stream, content = item
            if stream not in self._unread:
                try:
                    _write(sys.stderr if stream == "stderr" else sys.stdout, content)
                except BrokenPipeError:
                    self._unread.add(stream)
                    self._closed(stream)
                except OSError:  # a full disk, a terminal that is gone
                    pass
            self._written(node, len(content))


def _write(output: TextIO, content: bytes) -> None:
    with suppress(ValueError):  # closed
        output.flush()
        try:
            descriptor = output.fileno()
        except OSError:  # a stream without a descriptor, in a program that runs the launcher
            output.buffer.write(content)
            output.buffer.flush()
            return
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # another process has made it non-blocking
                select.select([], [descriptor], [])
