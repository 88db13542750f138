"""Takes what the ranks of this machine print, where it does not go to files.

In: what the launcher's standard output and error are. Out: the writing ends that become those of the zygote and its
ranks: pseudoterminals where the launcher has a terminal, so that programs write line by line and in colour, otherwise
pipes; and the streams' names, each with content as it arrived. A write of up to 4,096 bytes (PIPE_BUF) to a pipe is
never torn. While the agent does not read, the streams fill, and the ranks wait as they do for a slow terminal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress

from maya.nodes.console_output import Console

_PIPE_BYTES = 1 << 16  # of Linux's pipes: a read of that many bytes empties one, so it ends where a write has ended
_GRACE_SECONDS = 1.0  # for processes that outlive their ranks with a stream open


class ConsoleStreams:
    """The reading ends. After close() none is open, and whoever still writes gets an error."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._streams: dict[int, str] = {}  # by reading end
        self._terminals: set[int] = set()
        self.stdout = self._open("stdout", console)
        self.stderr = os.dup(self.stdout) if console.one_stream else self._open("stderr", console)
        self._owed: dict[int, int] = {}  # bytes that may have lain in a stream when the last process ended
        self._deadline: float | None = None

    def _open(self, stream: str, console: Console) -> int:
        reader = writer = -1
        if stream in console.terminals:
            with suppress(OSError):  # no pseudoterminals here
                reader, writer = _open_terminal(*console.terminals[stream])
                self._terminals.add(reader)
        if reader < 0:
            reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        self._streams[reader] = stream
        return writer

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Readable when there is something to read, and at the end of a stream."""
        return tuple(self._streams)

    @property
    def ended(self) -> bool:
        """Whether everything has been read that was printed before expect_end()."""
        if not self._streams:
            return True
        is_late = self._deadline is not None and self._clock() >= self._deadline
        return is_late and not any(self._owed.values())

    def close_writers(self) -> None:
        """The zygote has inherited them."""
        os.close(self.stdout)
        os.close(self.stderr)

    def read(self) -> list[tuple[str, bytes]]:
        """What has arrived: of each stream up to what a pipe holds."""
        arrived = []
        for descriptor, stream in list(self._streams.items()):
            content = self._read(descriptor)
            if content:
                arrived.append((stream, content))
        return arrived

    def _read(self, descriptor: int) -> bytes:
        content = b""
        while len(content) < _PIPE_BYTES:
            try:
                more = os.read(descriptor, _PIPE_BYTES - len(content))
            except BlockingIOError:
                self._owed.pop(descriptor, None)
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                more = b""  # the end of a pseudoterminal
            content += more
            if descriptor in self._owed:
                self._owed[descriptor] = max(0, self._owed[descriptor] - len(more))
            if not more:
                self._close(descriptor)
                break
            if descriptor not in self._terminals:  # which give a page at a time
                break
        return content

    def expect_end(self) -> None:
        """The last process that should write has ended."""
        self._deadline = self._clock() + _GRACE_SECONDS
        self._owed = dict.fromkeys(self._streams, _PIPE_BYTES)

    def close_stream(self, stream: str) -> None:
        """Nobody reads the launcher's stream any longer: let those who write to it know, by EPIPE."""
        for descriptor, name in list(self._streams.items()):
            if name == stream:
                self._close(descriptor)

    def close(self) -> None:
        for descriptor in self.descriptors:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        del self._streams[descriptor]
        self._owed.pop(descriptor, None)
        os.close(descriptor)


def _open_terminal(rows: int, columns: int) -> tuple[int, int]:
    """A pseudoterminal of this size, which passes on bytes as they are."""
    reader, writer = os.openpty()
    try:
        tty.setraw(writer)
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    except (OSError, termios.error, struct.error):
        os.close(reader)
        os.close(writer)
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY)) from None
    return reader, writer
