"""What a process that was just forked from the zygote does to become a rank.

In: a `RankStart`. Out: a process that has nothing of the zygote's but its memory: a session, environment, output
streams, signal handling and random state of its own. It ends with the zygote, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rank_runtime.zygote.protocol import ALONE, ENTRY, VARIABLE, RankStart

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

_libc = ctypes.CDLL(None)


def become_rank(start: RankStart, zygote: int, descriptors: Iterable[int]) -> None:
    """The first steps of every rank; `descriptors` are the zygote's own."""
    os.setsid()  # as torchrun's workers: Ctrl-C on the terminal reaches the launcher only, which passes it on
    end_with(zygote)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.update(start.environment)
    _give_way(int(start.environment["WORLD_SIZE"]))
    try:
        _redirect(start.stdout, 1)
        _redirect(start.stderr, 2)
    except OSError as error:
        _refuse(f"rank {start.rank}: cannot write to {error.filename}: {error.strerror}")


def _give_way(ranks: int) -> None:
    """To the coordinator, which everybody waits for: of a core on which hundreds want to run, its even share is next to
    nothing. One level for every doubling of the ranks on a core."""
    levels = (ranks // (os.cpu_count() or 1)).bit_length() - 1
    if levels > 0:
        os.nice(levels)
        with suppress(OSError):  # where the kernel keeps sessions apart, it goes by the level of the session
            Path("/proc/self/autogroup").write_text(str(levels), encoding="utf-8")


def start_anew(command: tuple[str, ...]) -> NoReturn:
    """Become another program, which shares nothing with the zygote; if it is Python, alone.py begins it."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ENTRY) + (os.pathsep + path if path else "")
    os.environ[VARIABLE] = ALONE
    os.environ["MAYA_RANK_PROCESS"] = str(os.getpid())  # to tell a rank from the programs that it starts
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _refuse(f"cannot start {command[0]}: {error.strerror}")


def end_with(parent: int) -> None:
    """Ask to be killed when the parent process ends, however that happens."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def outlive_parent(parent: int) -> None:
    """Take that back, if the parent is still there."""
    end_with(parent)
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def name_of_process() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8").rstrip("\n")


def name_process(name: str) -> None:
    """As ps shows it."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _redirect(path: str | None, descriptor: int) -> None:
    if path is None:
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.dup2(file, descriptor)
    os.close(file)


def _refuse(text: str) -> NoReturn:
    os.write(2, f"maya-torchrun: {text}\n".encode())
    os._exit(1)


def begin_device() -> None:
    """Give this process virtual GPUs of its own."""
    _libc.maya_begin_rank()


def _own(value: object) -> object:
    return {} if value == {} else value  # annotations


def begin_interpreter(now_ns: int) -> None:
    """Give this process what every Python process has to itself: the module to run the script in (the one that is there
    is exempt from garbage collection), seeds and identities drawn at random when modules were imported, the time at
    which the program began, which is `now_ns`. (`random` and `tempfile` look after themselves.)"""
    main = ModuleType("__main__")
    vars(main).clear()
    vars(main).update({name: _own(value) for name, value in vars(sys.modules["__main__"]).items()})
    sys.modules["__main__"] = main
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    multiprocessing_process: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing_process is not None:
        multiprocessing_process.current_process().authkey = os.urandom(32)
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = now_ns / 1e9 if isinstance(logging._startTime, float) else now_ns
