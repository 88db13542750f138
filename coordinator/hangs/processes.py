"""What the threads of a process do, as the kernel tells it.

In: process ids. Out: pulses and samples; two of them, some time apart, tell whether a process has stood still; and the
system calls that threads are in. A pulse is of the main thread alone, which is little to look at in a thousand
processes; a sample is of all threads. Those that wake up regularly without being the program (the watchdogs of torch,
ZeroMQ, ours) do not count, nor does a little work of other threads than the main one. Children count: a data loader's
worker, or a compiler.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

_WATCHDOGS = ("pt_nccl_watchdg", "pt_nccl_heartbt")
_ASIDE = (*_WATCHDOGS, "maya-")  # wake up ten times a second
_READY = "RD"  # states of a thread that could run and has no core, or waits for a disk
_CARRIER = "ZMQbg/"  # does little, but may have a message to carry
_BUSY_SHARE = 0.01  # of one core: below it a thread only looks at something now and then
_TICKS = os.sysconf("SC_CLK_TCK")
_ARM = platform.machine() == "aarch64"
_SLEEPS = frozenset({115, 101}) if _ARM else frozenset({230, 35})  # clock_nanosleep, nanosleep
_RECEIVES = frozenset({207, 63}) if _ARM else frozenset({45, 0})  # recvfrom, read
_POLL = -1 if _ARM else 7
_PPOLL = 73 if _ARM else 271
_FUTEX = 98 if _ARM else 202
_FUTEX_WAIT, _FUTEX_COMMAND, _FUTEX_REALTIME = 0, 0x7F, 0x100


class Doing(Enum):
    """What a process did between two samples."""

    RUNS = "runs"
    POLLS = "polls"  # its main thread wakes up now and then
    SLEEPS = "sleeps"  # in a sleep, which ends
    STANDS = "stands"
    GONE = "has ended"


@dataclass(frozen=True)
class SystemCall:
    """A system call that a thread is in."""

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
    spent: int  # ns on a core
    turns: int  # how often it was put there
    ready: bool  # it could run and has no core, or waits for a disk

    def stands_since(self, before: Pulse) -> bool:
        return not self.ready and before.turns == self.turns and before.spent == self.spent


@dataclass
class Sample:
    """A process at one moment."""

    pulse: Pulse
    threads: dict[int, int] = field(default_factory=dict)  # ticks on a core of those that count
    children: dict[int, int] = field(default_factory=dict)  # ticks, of all of them, theirs included
    ready: bool = False  # some thread
    sleeps: bool = False  # the main thread, or a child


class Children:
    """Which processes were started by which, at one moment."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        for process in _numbers("/proc"):
            found = _status(f"/proc/{process}/stat")
            if found is not None:
                self._of.setdefault(found.parent, []).append(process)

    def of(self, process: int) -> Iterator[int]:
        """All of them, theirs included."""
        for child in self._of.get(process, ()):
            yield child
            yield from self.of(child)


def pulse(process: int, moment: float) -> Pulse | None:
    """None: it has ended."""
    folder = f"/proc/{process}/task/{process}"
    words, found = _read(f"{folder}/schedstat").split(), _status(f"{folder}/stat")
    if len(words) != 3 or found is None:
        return None
    return Pulse(moment, int(words[0]), int(words[2]), found.state in _READY)


def doing_of_main(before: Pulse | None, after: Pulse | None) -> Doing:
    """What the main thread of a process did between two pulses; whether one that stands sleeps is not looked at."""
    if after is None:
        return Doing.GONE
    if before is None or after.ready:
        return Doing.RUNS  # it has just come, or would if there was a core for it
    if after.stands_since(before):
        return Doing.STANDS
    share = (after.spent - before.spent) / ((after.moment - before.moment) * 1e9)
    return Doing.RUNS if share >= _BUSY_SHARE else Doing.POLLS


def sample(process: int, moment: float, children: Children) -> Sample | None:
    """None: it has ended."""
    main = pulse(process, moment)
    if main is None:
        return None
    taken = Sample(main, ready=main.ready, sleeps=_sleeps(process))
    for thread in _numbers(f"/proc/{process}/task"):
        found = _status(f"/proc/{process}/task/{thread}/stat")
        if found is None or found.name.startswith(_ASIDE):
            continue
        taken.ready = taken.ready or found.state in _READY
        if not found.name.startswith(_CARRIER):
            taken.threads[thread] = found.ticks
    for child in children.of(process):
        found = _status(f"/proc/{child}/stat")
        if found is not None:
            taken.children[child] = found.ticks
            taken.ready = taken.ready or found.state in _READY
            taken.sleeps = taken.sleeps or _sleeps(child)
    return taken


def doing(before: Sample | None, after: Sample | None) -> Doing:
    """What a process did between two samples of it."""
    if after is None or before is None:
        return Doing.GONE
    main = doing_of_main(before.pulse, after.pulse)
    if main is not Doing.STANDS:
        return main
    seconds = after.pulse.moment - before.pulse.moment
    spent = sum(ticks - before.threads.get(thread, 0) for thread, ticks in after.threads.items())
    spent += sum(ticks - before.children.get(child, 0) for child, ticks in after.children.items())
    if after.ready or spent / _TICKS >= _BUSY_SHARE * seconds:
        return Doing.RUNS
    return Doing.SLEEPS if after.sleeps else Doing.STANDS


def system_call(process: int, thread: int | None = None) -> SystemCall | None:
    """None: it runs, or we must not know."""
    words = _read(f"/proc/{process}/task/{thread or process}/syscall").split()
    if len(words) != 9 or not words[0].isdigit():
        return None
    return SystemCall(int(words[0]), tuple(int(word, 16) for word in words[1:7]), int(words[7], 16))


def system_calls(process: int) -> dict[int, SystemCall | None]:
    """Those of all threads."""
    return {thread: system_call(process, thread) for thread in _numbers(f"/proc/{process}/task")}


def futex_seconds(process: int, call: SystemCall) -> float:
    """How long a thread still waits for a futex, at most."""
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
    """The thread whose end a thread in pthread_join waits for: glibc waits for its number to be cleared."""
    content = _memory(process, call.arguments[0], 4)
    number = int(struct.unpack("i", content)[0]) if content else 0
    return number if number > 1 and number in _numbers(f"/proc/{process}/task") else None


class Mappings:
    """The memory of a process, read when it is first asked for."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._mappings: list[tuple[int, int, bool]] | None = None  # first and last address, whether others share it

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
        """Whether other processes may see what is there; so it is if we must not know."""
        found = self.of(address)
        return found is None or found[2]


def watchdog_sleeps(process: int) -> bool:
    """Whether a watchdog of torch's has given up on a collective: it sleeps for a minute then, for others to write
    their flight recorders, and whoever ends its process group waits for that."""
    for thread in _numbers(f"/proc/{process}/task"):
        found = _status(f"/proc/{process}/task/{thread}/stat")
        if found is not None and found.name.startswith(_WATCHDOGS) and _sleeps(process, thread):
            return True
    return False


@dataclass(frozen=True)
class Reception:
    """What a thread waits to receive."""

    descriptor: int
    seconds: float  # at most


def reception(process: int, call: SystemCall) -> Reception | None:
    """What a thread waits to receive; None: it does not wait for that."""
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
    """Whether what it waits for comes from a TCP port of this machine."""
    try:
        target = os.readlink(f"/proc/{process}/fd/{awaited.descriptor}")  # noqa: PTH115 - it is no path
    except OSError:
        return False
    return target.startswith("socket:[") and target[8:-1] in _inodes(process, port)


def _inodes(process: int, port: int) -> set[str]:
    """Of sockets that are connected to the port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/{process}/net/{table}").splitlines()[1:]:
            words = line.split()
            if int(words[2].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return inodes


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
    """Thousands of times, so without a file object."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        content = b""
        while more := os.read(descriptor, 1 << 16):  # the kernel gives a page at a time
            content += more
        return content.decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
