"""The launcher's end of a debugger that runs in a rank of another machine.

In: the debugger's output as its node sends it, and a way to send input there. Out: a socket that behaves as the
debugger's own does (maya/launcher/rank_debugger.py). Two threads move the bytes, so that a terminal that does not read
holds up nobody else.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_INPUT_BYTES = 4096
_END_SECONDS = 2.0


class DebuggerLink:
    """One session. After close() no thread of it is left."""

    def __init__(self, send: Callable[[bytes], None], written: Callable[[int], None]) -> None:
        """`send`: sends input; empty: it has ended. `written`: called with the bytes of output that were taken."""
        self.socket, self._far = socket.socketpair()
        self._send = send
        self._written = written
        self._output: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name="debugger link", daemon=True)
            for target in (self._move_input, self._move_output)
        ]
        for thread in self._threads:
            thread.start()

    def write(self, content: bytes) -> None:
        """Output of the debugger; empty: it has ended. Does not block."""
        self._output.put(content)

    def close(self) -> None:
        """End both directions; whoever holds the socket reads its end."""
        self._output.put(b"")
        with suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_END_SECONDS)
        self._far.close()

    def _move_input(self) -> None:
        content = b"-"
        while content:
            try:
                content = self._far.recv(_INPUT_BYTES)
            except OSError:
                content = b""
            self._send(content)

    def _move_output(self) -> None:
        while content := self._output.get():
            with suppress(OSError):  # nobody reads it any longer
                self._far.sendall(content)
            self._written(len(content))
        with suppress(OSError):
            self._far.shutdown(socket.SHUT_WR)
