"""What the threads of a process do, as the kernel tells it.

In: process ids. Out: samples; two of them, some time apart, tell whether a process has stood still. Threads that wake
up regularly without being the program (the watchdogs of torch, ZeroMQ, ours) do not count, nor does a little work of
other threads than the main one and autograd's. Children count: a data loader's worker, or a compiler.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_ASIDE = ("pt_nccl_watchdg", "pt_nccl_heartbt", "ZMQbg/", "maya-", "pt_fr", "pt_tcpstore", "cuda-EvtHandlr")
_PROGRAM = ("pt_autograd",)
_BUSY_SHARE = 0.01  # of one core: below it a thread only looks at something now and then
_ARM = platform.machine() == "aarch64"
_SLEEPS = frozenset({115, 101}) if _ARM else frozenset({230, 35})  # clock_nanosleep, nanosleep
_RECEIVES = frozenset({207, 63}) if _ARM else frozenset({45, 0})  # recvfrom, read
_POLL = -1 if _ARM else 7
_PPOLL = 73 if _ARM else 271


class Doing(Enum):
    """What a process did between two samples."""

    RUNS = "runs"
    POLLS = "polls"  # its main thread wakes up now and then
    SLEEPS = "sleeps"  # in a sleep, which ends
    STANDS = "stands"
    GONE = "has ended"


@dataclass(frozen=True)
class Call:
    """A system call that a thread is in."""

    number: int
    arguments: tuple[int, ...]

    @property
    def is_sleep(self) -> bool:
        return self.number in _SLEEPS


@dataclass
class Sample:
    """A process at one moment."""

    moment: float
    main: tuple[str, int, int] = ("", 0, 0)  # state, ns on a core, how often it was put there
    threads: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # name, ns, how often
    children: dict[int, tuple[str, int]] = field(default_factory=dict)  # all of them, theirs included: state, ns
    ready: bool = False  # some thread could run, and has no core, or waits for a disk
    sleeps: bool = False
    child_sleeps: bool = False


def sample(process: int, moment: float) -> Sample | None:
    """None: it has ended."""
    main = _scheduled(process, process)
    if main is None:
        return None
    taken = Sample(moment, (_state(process, process), *main))
    call = system_call(process)
    taken.sleeps = call is not None and call.is_sleep
    for thread in _numbers(f"/proc/{process}/task"):
        if thread == process:
            continue
        taken.ready = taken.ready or _state(process, thread) in ("R", "D")
        name = _read(f"/proc/{process}/task/{thread}/comm").rstrip("\n")
        scheduled = None if name.startswith(_ASIDE) else _scheduled(process, thread)
        if scheduled is not None:
            taken.threads[thread] = (name, *scheduled)
    for child in _descendants(process):
        scheduled = _scheduled(child, child)
        if scheduled is not None:
            taken.children[child] = (_state(child, child), _run_ns(child))
            call = system_call(child)
            taken.child_sleeps = taken.child_sleeps or (call is not None and call.is_sleep)
    return taken


def doing(before: Sample | None, after: Sample | None) -> Doing:
    """What a process did between two samples of it."""
    if after is None:
        return Doing.GONE
    if before is None:
        return Doing.RUNS  # it has just come
    allowed_ns = int((after.moment - before.moment) * 1e9 * _BUSY_SHARE)
    state, main_ns, main_times = after.main
    spent_ns = main_ns - before.main[1]
    stands = main_times == before.main[2] and state != "R" and not after.ready
    for thread, (name, ns, times) in after.threads.items():
        earlier = before.threads.get(thread)
        if earlier is None:
            stands = False
            continue
        spent_ns += ns - earlier[1]
        if name.startswith(_PROGRAM) and times != earlier[2]:
            stands = False
    for child, (state_of_child, ns) in after.children.items():
        earlier_child = before.children.get(child)
        spent_ns += ns - earlier_child[1] if earlier_child else allowed_ns
        if state_of_child in "RD":
            spent_ns += allowed_ns
    if state == "D":
        spent_ns += allowed_ns  # waits for a disk
    if spent_ns >= allowed_ns:
        return Doing.RUNS
    if after.sleeps or after.child_sleeps:
        return Doing.SLEEPS
    return Doing.STANDS if stands else Doing.POLLS


def system_call(process: int, thread: int | None = None) -> Call | None:
    """None: it runs, or we must not know."""
    words = _read(f"/proc/{process}/task/{thread or process}/syscall").split()
    if not words or not words[0].isdigit():
        return None
    return Call(int(words[0]), tuple(int(word, 16) for word in words[1:7]))


def waits_for_port(process: int, port: int) -> float | None:
    """Seconds that the main thread waits at most for something from a TCP port of this machine; None: it does not."""
    call = system_call(process)
    if call is None:
        return None
    descriptor, seconds = -1, float("inf")
    if call.number in _RECEIVES:
        descriptor = call.arguments[0]
    elif call.number in (_POLL, _PPOLL) and call.arguments[1] >= 1:
        content = _memory(process, call.arguments[0], 8)
        if content:
            descriptor = struct.unpack("ihh", content)[0]
        if call.number == _POLL:
            milliseconds = call.arguments[2] & 0xFFFFFFFF
            seconds = float("inf") if milliseconds >= 1 << 31 else milliseconds / 1000
        elif call.arguments[2]:
            span = _memory(process, call.arguments[2], 16)
            seconds = struct.unpack("qq", span)[0] if span else float("inf")
    if descriptor < 0:
        return None
    try:
        target = os.readlink(f"/proc/{process}/fd/{descriptor}")  # noqa: PTH115 - it is no path
    except OSError:
        return None
    return seconds if target.startswith("socket:[") and target[8:-1] in _inodes(process, port) else None


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


def _descendants(process: int) -> Iterable[int]:
    waiting = [process]
    while waiting:
        parent = waiting.pop()
        for thread in _numbers(f"/proc/{parent}/task"):
            for child in map(int, _read(f"/proc/{parent}/task/{thread}/children").split()):
                waiting.append(child)
                yield child


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder)]  # noqa: PTH208
    except OSError:
        return []


def _scheduled(process: int, thread: int) -> tuple[int, int] | None:
    words = _read(f"/proc/{process}/task/{thread}/schedstat").split()
    return (int(words[0]), int(words[2])) if len(words) == 3 else None


def _run_ns(process: int) -> int:
    """Of all threads of a process."""
    return sum((_scheduled(process, thread) or (0, 0))[0] for thread in _numbers(f"/proc/{process}/task"))


def _state(process: int, thread: int) -> str:
    return _read(f"/proc/{process}/task/{thread}/stat").rpartition(")")[2].lstrip()[:1]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
