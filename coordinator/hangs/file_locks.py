"""The file lock that a process waits for, and who holds it.

In: a process id, read from /proc; the ranks of processes. Out: `/data/cache.lock, held by rank 0`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from coordinator.hangs.processes import system_call

_ARM = platform.machine() == "aarch64"
_FLOCK = 32 if _ARM else 73
_FCNTL = 25 if _ARM else 72
_WAITING_COMMANDS = (7, 38)  # F_SETLKW, F_OFD_SETLKW


def awaited_lock(process: int, ranks: Mapping[int, int]) -> str:
    """The lock that the main thread of a process waits for; empty: none. `ranks`: by process."""
    call = system_call(process)
    if call is None:
        return ""
    if call.number != _FLOCK and (call.number != _FCNTL or call.arguments[1] not in _WAITING_COMMANDS):
        return ""
    path = "a file"
    with suppress(OSError):
        path = os.readlink(f"/proc/{process}/fd/{call.arguments[0]}")  # noqa: PTH115 - the file may have been removed
    holder = _holder(process)
    if holder is None:
        return path
    if holder in ranks:
        return f"{path}, held by rank {ranks[holder]}"
    name = ""
    with suppress(OSError):
        name = f" ({Path(f'/proc/{holder}/comm').read_text(encoding='utf-8').strip()})"
    return f"{path}, held by process {holder}{name}"


def _holder(process: int) -> int | None:
    """The process whose lock blocks another process, from /proc/locks: a blocked lock follows, with an arrow and the
    same number, the lock that blocks it."""
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    holders: dict[str, int] = {}
    for line in lines:
        number, *words = line.split()
        if words[:1] == ["->"]:
            if len(words) > 4 and words[4] == str(process):
                return holders.get(number)
        elif len(words) > 3 and words[3].lstrip("-").isdigit():
            holders[number] = int(words[3])
    return None
