"""Reads from /proc whether the threads of a process run or block.

In: process ids. Out: pulses and samples, and the system calls that block threads. Two pulses or samples, taken some
time apart, tell whether a process was blocked in between. A pulse covers the main thread alone, and so is cheap to take
of a thousand processes; a sample covers all threads. Samples ignore background threads that wake up regularly (the
watchdogs of torch, ZeroMQ's and Maya's threads), and a little CPU time of threads other than the main one. Child
processes count: data loader workers, compilers.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

_WATCHDOGS = ("pt_nccl_watchdg", "pt_nccl_heartbt")
_BACKGROUND = (*_WATCHDOGS, "maya-")  # threads that wake up ten times a second
_READY = "RD"  # thread states: runnable, or waiting for a disk
_TRANSPORT = "ZMQbg/"  # uses little CPU time, but a runnable one may have data to deliver
_BUSY_SHARE = 0.01  # a thread that uses less of a core only polls now and then
_TICKS = os.sysconf("SC_CLK_TCK")
_ARM = platform.machine() == "aarch64"
_SLEEPS = frozenset({115, 101}) if _ARM else frozenset({230, 35})  # clock_nanosleep, nanosleep
_RECEIVES = frozenset({207, 63}) if _ARM else frozenset({45, 0})  # recvfrom, read
_POLL = -1 if _ARM else 7
_PPOLL = 73 if _ARM else 271
_FUTEX = 98 if _ARM else 202
_LISTENS = "0A"  # the state of a TCP socket in /proc/net/tcp; the queue of a listening one means others
_FUTEX_WAIT, _FUTEX_COMMAND, _FUTEX_REALTIME = 0, 0x7F, 0x100


class Doing(Enum):
    """The activity of a process between two samples."""

    RUNS = "runs"
    POLLS = "polls"  # its main thread wakes up now and then
    SLEEPS = "sleeps"  # in a sleep, which ends by itself
    BLOCKED = "stands"  # the value appears in hang.json
    GONE = "has ended"


@dataclass(frozen=True)
class SystemCall:
    """A system call that blocks a thread."""

    number: int
    arguments: tuple[int, ...]
    stack_pointer: int

    @property
    def is_sleep(self) -> bool:
        return self.number in _SLEEPS

    @property
    def is_futex(self) -> bool:
        return self.number == _FUTEX


@dataclass(frozen=True)
class Pulse:
    """The main thread of a process at one moment."""

    moment: float
    spent: int  # CPU time, ns
    turns: int  # number of time slices
    ready: bool  # runnable, or waiting for a disk

    def blocked_since(self, before: Pulse) -> bool:
        return not self.ready and before.turns == self.turns and before.spent == self.spent


@dataclass
class Sample:
    """A process at one moment."""

    pulse: Pulse
    threads: dict[int, int] = field(default_factory=dict)  # CPU ticks by thread, without background threads
    children: dict[int, int] = field(default_factory=dict)  # CPU ticks by descendant process
    ready: bool = False  # some thread is runnable or waits for a disk
    sleeps: bool = False  # the main thread or a child is in a sleep


class Children:
    """The process tree at one moment."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        for process in _numbers("/proc"):
            found = _status(f"/proc/{process}/stat")
            if found is not None:
                self._of.setdefault(found.parent, []).append(process)

    def of(self, process: int) -> Iterator[int]:
        """All descendants of a process."""
        for child in self._of.get(process, ()):
            yield child
            yield from self.of(child)


def pulse(process: int, moment: float) -> Pulse | None:
    """The main thread's state now; None if the process has ended."""
    folder = f"/proc/{process}/task/{process}"
    words, found = _read(f"{folder}/schedstat").split(), _status(f"{folder}/stat")
    if len(words) != 3 or found is None:
        return None
    return Pulse(moment, int(words[0]), int(words[2]), found.state in _READY)


def doing_of_main(before: Pulse | None, after: Pulse | None) -> Doing:
    """The activity of a main thread between two pulses. A sleeping thread counts as blocked."""
    if after is None:
        return Doing.GONE
    if before is None or after.ready:
        return Doing.RUNS  # it has just started, or is runnable
    if after.blocked_since(before):
        return Doing.BLOCKED
    share = (after.spent - before.spent) / ((after.moment - before.moment) * 1e9)
    return Doing.RUNS if share >= _BUSY_SHARE else Doing.POLLS


def sample(process: int, moment: float, children: Children) -> Sample | None:
    """The state of all threads and children now; None if the process has ended."""
    main = pulse(process, moment)
    if main is None:
        return None
    taken = Sample(main, ready=main.ready, sleeps=_sleeps(process))
    for thread in _numbers(f"/proc/{process}/task"):
        found = _status(f"/proc/{process}/task/{thread}/stat")
        if found is None or found.name.startswith(_BACKGROUND):
            continue
        taken.ready = taken.ready or found.state in _READY
        if not found.name.startswith(_TRANSPORT):
            taken.threads[thread] = found.ticks
    for child in children.of(process):
        found = _status(f"/proc/{child}/stat")
        if found is not None:
            taken.children[child] = found.ticks
            taken.ready = taken.ready or found.state in _READY
            taken.sleeps = taken.sleeps or _sleeps(child)
    return taken


def doing(before: Sample | None, after: Sample | None) -> Doing:
    """The activity of a process between two samples."""
    if after is None:
        return Doing.GONE
    if before is None:  # unknown
        return Doing.RUNS
    main = doing_of_main(before.pulse, after.pulse)
    if main is not Doing.BLOCKED:
        return main
    seconds = after.pulse.moment - before.pulse.moment
    spent = sum(ticks - before.threads.get(thread, 0) for thread, ticks in after.threads.items())
    spent += sum(ticks - before.children.get(child, 0) for child, ticks in after.children.items())
    if after.ready or spent / _TICKS >= _BUSY_SHARE * seconds:
        return Doing.RUNS
    return Doing.SLEEPS if after.sleeps else Doing.BLOCKED


def system_call(process: int, thread: int | None = None) -> SystemCall | None:
    """The system call that blocks a thread; None if the thread runs or the kernel does not let us read it."""
    words = _read(f"/proc/{process}/task/{thread or process}/syscall").split()
    if len(words) != 9 or not words[0].isdigit():
        return None
    return SystemCall(int(words[0]), tuple(int(word, 16) for word in words[1:7]), int(words[7], 16))


def system_calls(process: int) -> dict[int, SystemCall | None]:
    """The system calls of all threads of a process."""
    return {thread: system_call(process, thread) for thread in _numbers(f"/proc/{process}/task")}


def futex_seconds(process: int, call: SystemCall) -> float:
    """The time until a thread's futex wait times out."""
    if call.arguments[3] == 0:
        return float("inf")
    content = _memory(process, call.arguments[3], 16)
    if not content:
        return 0.0
    seconds, nanoseconds = struct.unpack("qq", content)
    if call.arguments[1] & _FUTEX_COMMAND == _FUTEX_WAIT:
        return float(seconds)
    clock = time.CLOCK_REALTIME if call.arguments[1] & _FUTEX_REALTIME else time.CLOCK_MONOTONIC
    return float(seconds + nanoseconds / 1e9 - time.clock_gettime(clock))


def joined_thread(process: int, call: SystemCall) -> int | None:
    """The thread that a thread in pthread_join waits for: glibc waits for the kernel to clear its thread id."""
    content = _memory(process, call.arguments[0], 4)
    number = int(struct.unpack("i", content)[0]) if content else 0
    return number if number > 1 and number in _numbers(f"/proc/{process}/task") else None


class Mappings:
    """The memory mappings of a process, read on first use."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._mappings: list[tuple[int, int, bool]] | None = None  # first and last address, is shared

    def of(self, address: int) -> tuple[int, int, bool] | None:
        if self._mappings is None:
            self._mappings = []
            for line in _read(f"/proc/{self._process}/maps").splitlines():
                addresses, permissions = line.split(maxsplit=2)[:2]
                first, _, end = addresses.partition("-")
                self._mappings.append((int(first, 16), int(end, 16) - 1, permissions.endswith("s")))
        index = bisect_right(self._mappings, (address, float("inf"), True)) - 1
        found = self._mappings[index] if index >= 0 else None
        return found if found is not None and address <= found[1] else None

    def is_shared(self, address: int) -> bool:
        """Whether other processes may share the memory at an address; true if its mapping is unknown."""
        found = self.of(address)
        return found is None or found[2]


def watchdog_sleeps(process: int) -> bool:
    """Whether a watchdog thread of torch has given up on a collective.

    It then sleeps for a minute so that other ranks can write their flight recorders. Destroying the process group waits
    for it.
    """
    for thread in _numbers(f"/proc/{process}/task"):
        found = _status(f"/proc/{process}/task/{thread}/stat")
        if found is not None and found.name.startswith(_WATCHDOGS) and _sleeps(process, thread):
            return True
    return False


@dataclass(frozen=True)
class Reception:
    """A thread's wait for data on a file descriptor."""

    descriptor: int
    seconds: float  # timeout


def reception(process: int, call: SystemCall) -> Reception | None:
    """The wait for data that a system call is, or None."""
    if call.number in _RECEIVES:
        return Reception(call.arguments[0], float("inf"))
    if call.number not in (_POLL, _PPOLL) or call.arguments[1] < 1:
        return None
    content = _memory(process, call.arguments[0], 8)
    descriptor = struct.unpack("ihh", content)[0] if content else -1
    seconds = float("inf")
    if call.number == _POLL:
        milliseconds = call.arguments[2] & 0xFFFFFFFF
        seconds = float("inf") if milliseconds >= 1 << 31 else milliseconds / 1000
    elif call.arguments[2]:
        span = _memory(process, call.arguments[2], 16)
        seconds = struct.unpack("qq", span)[0] if span else float("inf")
    return Reception(descriptor, seconds)


def comes_from_port(process: int, awaited: Reception, port: int) -> bool:
    """Whether the awaited descriptor is a socket connected to a TCP port."""
    try:
        target = os.readlink(f"/proc/{process}/fd/{awaited.descriptor}")  # noqa: PTH115 - the target is not a path
    except OSError:
        return False
    return target.startswith("socket:[") and target[8:-1] in _inodes(process, port)


class Connections:
    """The TCP connections of a machine at one moment: what the other side has not confirmed."""

    def __init__(self, process: int) -> None:
        """`process`: one in the network that is meant."""
        self._unsent: dict[str, int] = {}  # local ports of sockets with data that is not confirmed
        for words in _tcp_sockets(process):
            if words[3] != _LISTENS and int(words[4].partition(":")[0], 16) > 0:
                self._unsent[words[9]] = _port(words[1])

    def are_idle(self, process: int) -> bool:
        """Whether the other sides have received everything that a process has sent. It may have no connections: a rank
        connects to the coordinator with its first communicator, and fails when that connection breaks."""
        return _sockets(process).isdisjoint(self._unsent)

    def any_unsent(self, port: int) -> bool:
        """Whether the other side of a connection from a port of this machine has not confirmed everything."""
        return port in self._unsent.values()


def _sockets(process: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    for descriptor in _numbers(f"/proc/{process}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{process}/fd/{descriptor}")  # noqa: PTH115 - the target is not a path
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _tcp_sockets(process: int) -> Iterator[list[str]]:
    """The kernel's lines about TCP sockets: number, local and remote address, state, queues, …, inode."""
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/{process}/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9:
                yield words


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _inodes(process: int, port: int) -> set[str]:
    """The inodes of sockets that are connected to the port."""
    return {words[9] for words in _tcp_sockets(process) if _port(words[2]) == port}


def _memory(process: int, address: int, size: int) -> bytes:
    try:
        with open(f"/proc/{process}/mem", "rb", buffering=0) as file:  # noqa: PTH123
            return os.pread(file.fileno(), size, address)
    except (OSError, OverflowError):
        return b""


@dataclass(frozen=True)
class _Status:
    name: str
    state: str
    parent: int
    ticks: int


def _status(path: str) -> _Status | None:
    head, _, rest = _read(path).rpartition(")")
    words = rest.split()
    if len(words) < 13:
        return None
    return _Status(head.partition("(")[2], words[0], int(words[1]), int(words[11]) + int(words[12]))


def _sleeps(process: int, thread: int | None = None) -> bool:
    call = system_call(process, thread)
    return call is not None and call.is_sleep


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _read(path: str) -> str:
    """The content of a file; without a file object, since this runs thousands of times."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        content = b""
        while more := os.read(descriptor, 1 << 16):  # the kernel returns a page at a time
            content += more
        return content.decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
