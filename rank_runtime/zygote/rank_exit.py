"""How ranks exit: like any Python process, but without tearing down the modules that they share with the zygote.

At interpreter shutdown, Python deletes its modules and runs the destructors of its libraries. In a rank that would copy
some 170 MB of the zygote's memory, in all ranks at about the same time. So a rank keeps the modules that it was forked
with: the script, its threads, its `atexit` functions, its own modules and objects end as usual; the shared modules, and
C destructors registered before the fork, are skipped. If the script has run to its end, so is the teardown of the
interpreter's strings and types. The remaining copies still add up, so only a few ranks exit at a time, unless they take
long.

In: the zygote tells which modules are shared and which rank has exited. Out: in a rank, its last `atexit` function; the
memory that a rank had for itself at its end.
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
from rank_runtime.zygote.shared_modules import SharedModules

_CONCURRENT_EXITS = 4
_PATIENCE_SECONDS = 1.0
_WAITING, _ADMITTED = 1, 2  # values of a rank's byte in shared memory; 0 before its exit

_libc = ctypes.CDLL(None)
_MOST_MEASURED = 64  # ranks; reading the figure takes some milliseconds
_PRIVATE = (b"Private_Clean:", b"Private_Dirty:")

_call_at_exit = getattr(_libc, "__cxa_atexit")  # getattr, because Python would mangle the name inside a class


class RankExit:
    """Controls the exit of ranks. The zygote makes it before it imports anything else, so that its `atexit` function is
    the last to be called."""

    def __init__(self, world_size: int, processes: int) -> None:
        self._state = mmap.mmap(-1, max(world_size, 1))
        self._private_bytes = memoryview(mmap.mmap(-1, 8 * max(world_size, 1))).cast("Q")  # by rank; 0: not measured
        self._measured_of = -(-processes // _MOST_MEASURED)  # one rank of this many
        self._admission = os.eventfd(_CONCURRENT_EXITS, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._last_change = time.monotonic()
        self._extra_admissions = 1
        self._started_with = frozenset(sys.modules)
        self._shared: frozenset[str] = frozenset()
        self._kept: list[ModuleType] = []
        self._rank: int | None = None
        self._process = 0
        atexit.register(lambda: self._end())  # the bound method would add a C frame (python_exit.c)

    def share_modules(self, others: SharedModules) -> None:
        """In the zygote: mark the `others` and every module imported until now as shared."""
        modules = {**others.modules, **sys.modules}
        self._shared = frozenset(modules) - self._started_with
        self._kept = [modules[name] for name in self._shared]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._kept))  # never released
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False

    def begin(self, rank: int) -> None:
        """In a rank, after the fork."""
        self._rank = rank
        self._process = os.getpid()
        # C exit functions run in reverse order: these two run after the functions that the program registers from now
        # on, and before those registered until now. So destructors of libraries loaded before the fork do not run.
        _libc.on_exit(ctypes.cast(_libc._exit, ctypes.c_void_p), None)
        _call_at_exit(ctypes.cast(_libc.fflush, ctypes.c_void_p), None, None)

    def _end(self) -> None:
        if os.getpid() != self._process or self._rank is None:  # a child process of the rank, or the zygote itself
            return
        succeeded = status_will_be_zero()
        if succeeded:
            complete_collectives()
        kept = not succeeded and keep_process_groups()
        if self._rank % self._measured_of == 0:
            self._private_bytes[self._rank] = _private_bytes()
        self._state[self._rank] = _WAITING
        os.eventfd_read(self._admission)
        self._state[self._rank] = _ADMITTED
        if not kept:
            _drop_process_groups()
        for name in self._shared:
            sys.modules.pop(name, None)
        if succeeded:
            ctypes.PyDLL(None).maya_leave_python_early()

    def rank_exited(self, rank: int) -> int:
        """In the zygote: the rank has exited, so admit another one. Returns the memory that the rank had for itself; 0:
        not measured."""
        self._extra_admissions = 1
        if self._state[rank] == _ADMITTED:
            self._admit(1)
        return self._private_bytes[rank]

    def admit_when_stuck(self) -> float:
        """In the zygote, periodically: if no rank has exited for a while, admit more ranks, twice as many each time,
        because ranks may wait for each other even now. Returns the seconds until the next call."""
        if time.monotonic() - self._last_change > _PATIENCE_SECONDS and _WAITING in self._state[:]:
            self._admit(self._extra_admissions)
            self._extra_admissions *= 2
        return _PATIENCE_SECONDS

    def _admit(self, number: int) -> None:
        os.eventfd_write(self._admission, number)
        self._last_change = time.monotonic()


def _private_bytes() -> int:
    """The memory of this process that no other process shares."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:  # noqa: PTH123  (pathlib may be gone)
            return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(_PRIVATE))
    except OSError:
        return 0


def _drop_process_groups() -> None:
    """Release the process groups that the program has not destroyed. A shared module holds them, and their destructors
    print a warning."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is not None and module.GroupMember.WORLD is not None:
        module.GroupMember.WORLD = None
        for name in ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag"):
            getattr(module, name, {}).clear()
