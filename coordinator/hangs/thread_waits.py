"""What the threads of a rank that stands still wait for, and so what can free the rank.

In: the system calls that the threads are in (processes.py), and what the rank told (stacks.py). Out: a `Condition`.

A thread waits
  for the device    on one of the conditions that the rank named: a stream, or an answer of the coordinator
  for a lock        of its own process, without a time limit: another thread must free it
  for other ranks   in the job's store, or inside torch.distributed (Gloo)
  outside           anything else: a sleep, a file lock, a pipe, a socket, a child, a time limit; it may go on any time

A thread that may go on can also call what others wait for, so a rank counts as stuck only if no thread that runs code
of the program is outside. Threads that run nothing but an installed package's code (progress bars, loggers, compile
pools, pin_memory) are taken to call no collectives; but if the main thread waits for a lock, any of them may free it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from coordinator.hangs import processes
from coordinator.hangs.deadlock import Condition
from coordinator.hangs.processes import SystemCall
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Frame, PythonThread, Stacks

_LASTING_SECONDS = 60.0  # a wait with a shorter time limit counts as polling


class Waits(Enum):
    """What a thread waits for."""

    DEVICE = "device"
    LOCK = "lock"
    RANKS = "other ranks"
    OUTSIDE = "outside"


def condition(process: int, told: Stacks, has_waits: bool, store_port: int | None) -> Condition:
    """What frees a rank that stands still. `has_waits`: it has posted calls that are not complete."""
    if not told.known:
        return Condition.FREE
    calls = processes.system_calls(process)
    if calls.get(process) is None:  # the kernel does not tell
        alone = (
            told.awaited_streams
            and not told.others
            and python_stacks.kind_of_wait(told.main) is not python_stacks.StackWait.SLEEP
        )
        return Condition.CALLS if alone else Condition.FREE
    memory = processes.Mappings(process)
    looks = _Looks(process, told, memory, store_port)
    main = looks.waits(calls[process], told.main)
    counted = [thread for thread in told.others if main is Waits.LOCK or _runs_the_program(thread)]
    others = [looks.waits(_call_of(thread, calls, process, memory), thread.frames) for thread in counted]
    if Waits.OUTSIDE in (main, *others):
        return Condition.FREE
    if Waits.RANKS in (main, *others):
        return Condition.MEETS
    if main is Waits.DEVICE:
        return Condition.CALLS
    # It waits for a thread of its own, which may have no Python stack: autograd's.
    device = any(call is not None and looks.is_device(call) for call in calls.values())
    is_end = not told.main  # the interpreter has ended, and destructors wait
    waits_inside = (has_waits and is_end) or (device and (is_end or told.main[0].is_torch))
    return Condition.CALLS if waits_inside else Condition.FREE


def is_in_store(process: int, store_port: int | None) -> bool:
    """Whether the main thread waits for an answer of the job's store."""
    call = processes.system_call(process)
    awaited = processes.reception(process, call) if call is not None else None
    return awaited is not None and store_port is not None and processes.comes_from_port(process, awaited, store_port)


def _runs_the_program(thread: PythonThread) -> bool:
    """Unless all its code is an installed package's, with Python's own around it."""
    return any(not frame.is_library for frame in thread.frames) or not any(
        frame.is_installed for frame in thread.frames
    )


def _call_of(
    thread: PythonThread, calls: dict[int, SystemCall | None], process: int, memory: processes.Mappings
) -> SystemCall | None:
    """The system call of a Python thread: its identity is an address at the top of its stack (glibc), and of all stack
    pointers below that the nearest is its own."""
    below = [
        call
        for number, call in calls.items()
        if number != process and call is not None and call.stack_pointer < thread.identity
    ]
    nearest = max(below, key=lambda call: call.stack_pointer, default=None)
    if nearest is None or memory.of(nearest.stack_pointer) != memory.of(thread.identity):
        return None
    return nearest


class _Looks:
    """At the threads of one process."""

    def __init__(self, process: int, told: Stacks, memory: processes.Mappings, store_port: int | None) -> None:
        self._process = process
        self._conditions = told.conditions
        self._memory = memory
        self._store_port = store_port

    def is_device(self, call: SystemCall) -> bool:
        return call.is_futex and any(call.arguments[0] in addresses for addresses in self._conditions)

    def waits(self, call: SystemCall | None, frames: Sequence[Frame], *, joins: bool = True) -> Waits:
        """What a thread waits for. None: it runs, or we must not know. `joins`: it may wait for the end of another."""
        if call is None:
            return Waits.OUTSIDE
        if not call.is_futex:
            return self._receives(call)
        if self.is_device(call):
            return Waits.DEVICE
        seconds = processes.futex_seconds(self._process, call)
        if seconds <= _LASTING_SECONDS or self._memory.is_shared(call.arguments[0]):  # shared: another process frees it
            return Waits.OUTSIDE
        joined = processes.joined_thread(self._process, call) if joins else None
        if joined is not None:
            # As a rank that ends its process group joins the watchdog: the thread decides, not another rank.
            return self.waits(processes.system_call(self._process, joined), (), joins=False)
        if python_stacks.kind_of_wait(frames) is python_stacks.StackWait.GROUP:
            # A watchdog that has given up sleeps for a minute, and who ends its process group waits for that.
            return Waits.OUTSIDE if processes.watchdog_sleeps(self._process) else Waits.RANKS
        return Waits.LOCK if seconds == float("inf") else Waits.OUTSIDE

    def _receives(self, call: SystemCall) -> Waits:
        awaited = processes.reception(self._process, call)
        if awaited is None or awaited.seconds <= _LASTING_SECONDS or self._store_port is None:
            return Waits.OUTSIDE
        from_store = processes.comes_from_port(self._process, awaited, self._store_port)
        return Waits.RANKS if from_store else Waits.OUTSIDE
