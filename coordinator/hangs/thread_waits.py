"""Classifies the waits of a blocked rank's threads, to find out which event can unblock the rank.

In: the system calls that block the threads (processes.py), and the rank's stacks (maya/hangs/python_stacks.py).
Out: a `Condition`.

A thread waits
  for the device    on a condition variable that the rank named: for a stream, or for an answer of the coordinator
  for a lock        of its own process, without a timeout: another thread must release it
  for other ranks   in the job's store, or inside torch.distributed (Gloo)
  outside           for anything else: a sleep, a file lock, a pipe, a socket, a child process, a timeout; it may go on
                    at any time

A thread that goes on may call the collective that other ranks wait for. A rank therefore counts as stuck only if no
thread that runs the program's code waits outside. Threads that run only code of an installed package (progress bars,
loggers, compile pools, pin_memory) are assumed to call no collectives. If the main thread waits for a lock, however,
any of them may release it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from coordinator.hangs import processes
from coordinator.hangs.deadlock import Condition
from coordinator.hangs.processes import SystemCall
from maya.hangs import python_stacks
from maya.hangs.python_stacks import Frame, PythonThread, Stacks

_LASTING_SECONDS = 60.0  # a wait with a shorter timeout counts as polling


class Waits(Enum):
    """The kind of event that a thread waits for."""

    DEVICE = "device"
    LOCK = "lock"
    RANKS = "other ranks"
    OUTSIDE = "outside"


def condition(process: int, stacks: Stacks, has_waits: bool, store_port: int | None) -> Condition:
    """Which event can unblock a blocked rank. `has_waits`: the rank has posted calls that are not complete."""
    if not stacks.known:
        return Condition.FREE
    calls = processes.system_calls(process)
    if calls.get(process) is None:  # /proc/*/syscall is not readable
        alone = (
            stacks.awaited_streams
            and not stacks.others
            and python_stacks.kind_of_wait(stacks.main) is not python_stacks.StackWait.SLEEP
        )
        return Condition.CALLS if alone else Condition.FREE
    memory = processes.Mappings(process)
    waits = _ThreadWaits(process, stacks, memory, store_port)
    main = waits.kind(calls[process], stacks.main)
    counted = [thread for thread in stacks.others if main is Waits.LOCK or runs_the_program(thread)]
    others = [waits.kind(_call_of(thread, calls, process, memory), thread.frames) for thread in counted]
    if Waits.OUTSIDE in (main, *others):
        return Condition.FREE
    if Waits.RANKS in (main, *others):
        return Condition.OTHER_RANKS
    if main is Waits.DEVICE:
        return Condition.CALLS
    # The main thread waits for another thread of its process, which may have no Python stack (an autograd thread).
    device = any(call is not None and waits.is_device(call) for call in calls.values())
    is_end = not stacks.main  # the interpreter has ended, and a destructor waits
    waits_inside = (has_waits and is_end) or (device and (is_end or stacks.main[0].is_torch))
    return Condition.CALLS if waits_inside else Condition.FREE


def is_in_store(process: int, store_port: int | None) -> bool:
    """Whether the main thread waits for an answer from the job's store."""
    call = processes.system_call(process)
    awaited = processes.reception(process, call) if call is not None else None
    return awaited is not None and store_port is not None and processes.comes_from_port(process, awaited, store_port)


def runs_the_program(thread: PythonThread) -> bool:
    """Whether a thread runs any code outside installed packages and the standard library."""
    return any(not frame.is_library for frame in thread.frames) or not any(
        frame.is_installed for frame in thread.frames
    )


def _call_of(
    thread: PythonThread, calls: dict[int, SystemCall | None], process: int, memory: processes.Mappings
) -> SystemCall | None:
    """The system call of a Python thread.

    The identity of a thread is an address at the top of its stack (glibc). The nearest stack pointer below that address
    is therefore the thread's own.
    """
    below = [
        call
        for number, call in calls.items()
        if number != process and call is not None and call.stack_pointer < thread.identity
    ]
    nearest = max(below, key=lambda call: call.stack_pointer, default=None)
    if nearest is None or memory.of(nearest.stack_pointer) != memory.of(thread.identity):
        return None
    return nearest


class _ThreadWaits:
    """Classifies the waits of one process's threads."""

    def __init__(self, process: int, stacks: Stacks, memory: processes.Mappings, store_port: int | None) -> None:
        self._process = process
        self._conditions = stacks.conditions
        self._memory = memory
        self._store_port = store_port

    def is_device(self, call: SystemCall) -> bool:
        return call.is_futex and any(call.arguments[0] in addresses for addresses in self._conditions)

    def kind(self, call: SystemCall | None, frames: Sequence[Frame], *, joins: bool = True) -> Waits:
        """The kind of a thread's wait.

        `call` is None if the thread runs or its system call is not readable. `joins`: follow a pthread_join.
        """
        if call is None:
            return Waits.OUTSIDE
        if not call.is_futex:
            return self._receives(call)
        if self.is_device(call):
            return Waits.DEVICE
        seconds = processes.futex_seconds(self._process, call)
        if seconds <= _LASTING_SECONDS or self._memory.is_shared(call.arguments[0]):  # shared: another process wakes it
            return Waits.OUTSIDE
        joined = processes.joined_thread(self._process, call) if joins else None
        if joined is not None:
            # A rank that destroys its process group joins the watchdog thread: the joined thread's wait decides.
            return self.kind(processes.system_call(self._process, joined), (), joins=False)
        if python_stacks.kind_of_wait(frames) is python_stacks.StackWait.GROUP:
            # A watchdog that has given up sleeps for a minute; destroying its process group waits for it to wake up.
            return Waits.OUTSIDE if processes.watchdog_sleeps(self._process) else Waits.RANKS
        return Waits.LOCK if seconds == float("inf") else Waits.OUTSIDE

    def _receives(self, call: SystemCall) -> Waits:
        awaited = processes.reception(self._process, call)
        if awaited is None or awaited.seconds <= _LASTING_SECONDS or self._store_port is None:
            return Waits.OUTSIDE
        from_store = processes.comes_from_port(self._process, awaited, self._store_port)
        return Waits.RANKS if from_store else Waits.OUTSIDE
