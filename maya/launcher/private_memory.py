"""The memory that a rank takes for itself, measured while a job runs.

In: the processes below this one. Out: the largest private memory of any rank seen.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import psutil

_NOT_RANKS = ("maya-zygote", "maya-coord")
_INTERVAL = 0.2  # seconds between two looks
_PRIVATE = ("Private_Clean:", "Private_Dirty:")


class PrivateMemory:
    """Looks at the ranks in a thread, as a context manager."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="private-memory", daemon=True)

    def __enter__(self) -> PrivateMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        launcher = psutil.Process()
        while not self._ended.wait(_INTERVAL):
            for process in launcher.children(recursive=True):
                self.most_bytes = max(self.most_bytes, _private_bytes(process))


def _private_bytes(process: psutil.Process) -> int:
    """The memory that no other process shares; 0 for one that has ended or is no rank."""
    try:
        if process.name() in _NOT_RANKS:
            return 0
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (OSError, psutil.Error):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(_PRIVATE))
