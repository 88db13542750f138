"""How ranks end: as any Python process does, but without paying for the end of what they share with the zygote.

An interpreter that ends takes its modules apart and runs the destructors of its libraries. In a rank that would copy
some 170 MB of the zygote's memory, in all ranks at about the same time. So a rank keeps the modules that it was forked
with: the script, its threads, its `atexit` functions, its own modules and objects end as ever, and what lies beneath is
left to the operating system, together with destructors in C that were there before the fork. If the script has run to
its end, so are the interpreter's own strings and types. What remains to be copied still adds up, and so only a few
ranks do it at a time, if they do not take long.

In: the zygote says what is shared, and which rank is gone. Out: in a rank, the last of its `atexit` functions.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
import time
import weakref
from types import ModuleType
from typing import Any

from rank_runtime.zygote.drain import complete_collectives, keep_process_groups, status_will_be_zero
from rank_runtime.zygote.shared import SharedModules

_AT_ONCE = 4
_PATIENCE_SECONDS = 1.0
_WAITING, _ADMITTED = 1, 2  # what a rank's byte in the shared memory says; 0 before

_libc = ctypes.CDLL(None)
_call_at_exit = getattr(_libc, "__cxa_atexit")  # under this name, a class would look for another one


class RankEndings:
    """Made in the zygote before anything else is imported, so that its `atexit` function is the last to be called."""

    def __init__(self, world_size: int) -> None:
        self._state = mmap.mmap(-1, max(world_size, 1))
        self._admission = os.eventfd(_AT_ONCE, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._last_change = time.monotonic()
        self._impatience = 1
        self._started_with = frozenset(sys.modules)
        self._shared: frozenset[str] = frozenset()
        self._kept: list[ModuleType] = []
        self._rank: int | None = None
        self._process = 0
        atexit.register(lambda: self._end())  # a function, which Python calls without steps in between

    def share_modules(self, others: SharedModules) -> None:
        """In the zygote: everything imported until now is shared, and so are the others."""
        modules = {**others.modules, **sys.modules}
        self._shared = frozenset(modules) - self._started_with
        self._kept = [modules[name] for name in self._shared]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._kept))  # never given back
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False

    def begin(self, rank: int) -> None:
        """In a rank."""
        self._rank = rank
        self._process = os.getpid()
        # Called in reverse order, after what the program registers from now on and before everything that was
        # registered until now: libraries loaded before the fork do not take themselves apart.
        _libc.on_exit(ctypes.cast(_libc._exit, ctypes.c_void_p), None)
        _call_at_exit(ctypes.cast(_libc.fflush, ctypes.c_void_p), None, None)

    def _end(self) -> None:
        if os.getpid() != self._process or self._rank is None:  # a child of the rank's, or the zygote itself
            return
        succeeded = status_will_be_zero()
        if succeeded:
            complete_collectives()
        kept = not succeeded and keep_process_groups()
        self._state[self._rank] = _WAITING
        os.eventfd_read(self._admission)
        self._state[self._rank] = _ADMITTED
        if not kept:
            _drop_process_groups()
        for name in self._shared:
            sys.modules.pop(name, None)
        if succeeded:
            ctypes.PyDLL(None).maya_leave_python_early()

    def gone(self, rank: int) -> None:
        """In the zygote: the rank has ended, so another one may."""
        self._impatience = 1
        if self._state[rank] == _ADMITTED:
            self._admit(1)

    def look_after(self) -> float:
        """In the zygote, now and then: if nothing has happened for a while, admit others, and every time more of them,
        since ranks may wait for each other even now. Returns the seconds until the next look."""
        if time.monotonic() - self._last_change > _PATIENCE_SECONDS and _WAITING in self._state[:]:
            self._admit(self._impatience)
            self._impatience *= 2
        return _PATIENCE_SECONDS

    def _admit(self, number: int) -> None:
        os.eventfd_write(self._admission, number)
        self._last_change = time.monotonic()


def _drop_process_groups() -> None:
    """Those that the program has not destroyed are kept by a module that is shared. They complain when they end."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is not None and module.GroupMember.WORLD is not None:
        module.GroupMember.WORLD = None
        for name in ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag"):
            getattr(module, name, {}).clear()
