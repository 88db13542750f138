"""Locks by which the ranks of a job agree who compiles a graph.

In: keys. Out: at most one process holds the lock of a key. A lock is a byte of one file, at a place given by the key
(POSIX record locks): it is released when its process ends, however that happens, a forked child does not inherit it,
and no files pile up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

_SHORTEST_WAIT, _LONGEST_WAIT = 0.01, 0.2  # seconds between two attempts
_PLACES = 1 << 62


class CompileLock:
    """The lock file of one folder, which all threads of this process share."""

    def __init__(self, folder: Path, most_seconds: float) -> None:
        """Nobody waits longer than `most_seconds`."""
        self._path = folder / "maya-compile.lock"
        self._most_seconds = most_seconds
        self._file: int | None = None
        self._held: set[int] = set()

    def acquire(self, key: str) -> str | None:
        """Lock the key. Returns "free" if nobody had locked it, "waited" if somebody had, and None if it is not locked
        now: the wait was too long, there can be no lock file, or this process, which has locked another key, could
        wait for a process that waits for it."""
        place = _place_of(key)
        if not self._open():
            return None
        if self._try(place):
            return "free"
        if self._held:
            return None
        end = time.monotonic() + self._most_seconds
        pause = _SHORTEST_WAIT
        while time.monotonic() < end:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT)
            if self._try(place):
                return "waited"
        return None

    def release(self, key: str) -> None:
        place = _place_of(key)
        self._held.discard(place)
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        """Release all locks."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._held.clear()

    def _open(self) -> bool:
        if self._file is None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Opened once: closing any descriptor of the file releases all locks of the process.
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._file is not None

    def _try(self, place: int) -> bool:
        assert self._file is not None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:  # held by another process; or the file system has no locks, and every attempt fails
            return False
        self._held.add(place)
        return True


def _place_of(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % _PLACES
