"""A rank of this machine in which the launcher's user runs Python's debugger (--on-hang pdb).

In: the rank's process, and input of the user. Out: output of the debugger, for the launcher. The rank is stopped again
when the session ends.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from maya.launcher import rank_debugger

_PART = 1 << 16
_SEND_SECONDS = 2.0  # for a debugger that does not read its input


class DebuggedRank:
    """One session."""

    def __init__(self, process: int, endpoint: str) -> None:
        self._process = process
        self._connection = rank_debugger.attach(process, endpoint)

    @property
    def descriptor(self) -> int | None:
        """Readable when the debugger has output; None: there is none, or no more."""
        return None if self._connection is None else self._connection.fileno()

    def read(self) -> bytes:
        """Output; empty at its end, and if the rank has no debugger."""
        content = b""
        if self._connection is not None:
            with suppress(OSError):
                content = self._connection.recv(_PART)
            if not content:
                self._end_connection()
        return content

    def write(self, content: bytes) -> None:
        """Input of the user; empty at its end."""
        if self._connection is None:
            return
        try:
            if content:
                self._connection.settimeout(_SEND_SECONDS)
                self._connection.sendall(content)
            else:
                self._connection.shutdown(socket.SHUT_WR)
        except OSError:  # it has ended, or does not read
            self._end_connection()

    def close(self) -> None:
        self._end_connection()
        rank_debugger.stop(self._process)

    def _end_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
