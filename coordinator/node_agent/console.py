"""Takes what the ranks of this machine print, where it does not go to files.

In: two pipes, whose writing ends are the standard output and error of the zygote and its ranks. Out: the streams'
names, each with content as it arrived. A write of up to 4,096 bytes (PIPE_BUF) is never torn. While the agent does not
read, the pipes fill, and the ranks wait as they do for a slow terminal.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
import time
from collections.abc import Callable

_PIPE_BYTES = 1 << 16  # of Linux's pipes: a read of that many bytes empties one, so it ends where a write has ended
_GRACE_SECONDS = 1.0  # for processes that outlive their ranks with a pipe open


class ConsolePipes:
    """The reading ends. After close() none is open, and whoever still writes gets EPIPE."""

    def __init__(self, *, one_stream: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """`one_stream`: the launcher's standard output and error are one file, so the order of both is kept."""
        self._clock = clock
        self._streams: dict[int, str] = {}  # by reading end
        self.stdout = self._open("stdout")
        self.stderr = os.dup(self.stdout) if one_stream else self._open("stderr")
        self._owed: dict[int, int] = {}  # bytes that lay in a pipe when the last process ended
        self._deadline: float | None = None

    def _open(self, stream: str) -> int:
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
        return is_late and not any(self._owed.get(descriptor, 0) > 0 for descriptor in self._streams)

    def close_writers(self) -> None:
        """The zygote has inherited them."""
        os.close(self.stdout)
        os.close(self.stderr)

    def read(self) -> list[tuple[str, bytes]]:
        """What has arrived: up to the size of a pipe of each stream."""
        arrived = []
        for descriptor, stream in list(self._streams.items()):
            try:
                content = os.read(descriptor, _PIPE_BYTES)
            except BlockingIOError:
                continue
            if content:
                arrived.append((stream, content))
                self._owed[descriptor] = self._owed.get(descriptor, 0) - len(content)
            else:
                self._close(descriptor)
        return arrived

    def expect_end(self) -> None:
        """The last process that should write has ended."""
        self._deadline = self._clock() + _GRACE_SECONDS
        self._owed = {descriptor: _unread_bytes(descriptor) for descriptor in self._streams}

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
        os.close(descriptor)


def _unread_bytes(descriptor: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
