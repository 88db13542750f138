"""Recognises processes of a job that the kernel killed because memory ran out.

In: the kernel's count of such kills, before the job and when a process has ended by SIGKILL. Out: a sentence for the
user. SIGKILL itself does not say who sent it.
"""

from __future__ import annotations

import signal

from maya.util.control_groups import killed_for_memory, memory_limits
from maya.util.text import bytes_text

_MORE_ROOM = "run fewer ranks (--represent auto), or use smaller batches where they are kept in host memory"


class MemoryKills:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._count = killed_for_memory()

    def explain(self, what: str, status: int) -> str | None:
        """Why a process ended with this status, if the kernel killed it to get memory; None: it did not."""
        if status != -signal.SIGKILL or self._count is None:
            return None
        now = killed_for_memory()
        if now is None or now <= self._count:
            return None
        self._count += 1
        return f"the kernel killed {what} because memory ran out (out-of-memory killer){_limit()}: {_remedy()}"


def _limit() -> str:
    lowest = min(memory_limits(), key=lambda each: each.left, default=None)
    if lowest is None:
        return ""
    return f"; the control group {lowest.folder} may use {bytes_text(lowest.limit)}"


def _remedy() -> str:
    return f"{_MORE_ROOM}, or raise the limit" if memory_limits() else _MORE_ROOM
