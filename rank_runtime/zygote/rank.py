"""The steps by which a process forked from the zygote becomes a rank.

In: a `RankStart`. Out: a process that shares only memory with the zygote: it has a session, environment, output
streams, signal handling and random state of its own. It is killed when the zygote ends.
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

from rank_runtime.zygote.protocol import ENTRY, SEPARATE, VARIABLE, RankStart

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

_libc = ctypes.CDLL(None)


def become_rank(start: RankStart, zygote: int, descriptors: Iterable[int], processes: int) -> None:
    """The first steps of every rank, of which there are `processes`; `descriptors` are the zygote's own and are
    closed."""
    os.setsid()  # like torchrun's workers: Ctrl-C on the terminal reaches only the launcher, which forwards it
    die_with_parent(zygote)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.update(start.environment)
    _lower_priority(processes)
    try:
        _redirect(start.stdout, 1)
        _redirect(start.stderr, 2)
    except OSError as error:
        _fail(f"rank {start.rank}: cannot write to {error.filename}: {error.strerror}")


def _lower_priority(ranks: int) -> None:
    """Raise the nice value by one for every doubling of ranks per core, so that the coordinator, on which all ranks
    wait, gets CPU time."""
    levels = (ranks // (os.cpu_count() or 1)).bit_length() - 1
    if levels > 0:
        os.nice(levels)
        with suppress(OSError):  # with autogroup, the kernel uses the nice value of the session
            Path("/proc/self/autogroup").write_text(str(levels), encoding="utf-8")


def exec_command(command: tuple[str, ...]) -> NoReturn:
    """Execute the rank's command, which shares nothing with the zygote; if it is Python, separate_rank.py starts it."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ENTRY) + (os.pathsep + path if path else "")
    os.environ[VARIABLE] = SEPARATE
    os.environ["MAYA_RANK_PROCESS"] = str(os.getpid())  # distinguishes a rank from the programs that it starts
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _fail(f"cannot start {command[0]}: {error.strerror}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the parent process ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had already ended
        os._exit(1)


def outlive_parent(parent: int) -> None:
    """Undo `die_with_parent`, if the parent still exists."""
    die_with_parent(parent)
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def name_of_process() -> str:
    return Path("/proc/self/comm").read_text(encoding="utf-8").rstrip("\n")


def name_process(name: str) -> None:
    """Set the name of this process in `ps`."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _redirect(path: str | None, descriptor: int) -> None:
    if path is None:
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.dup2(file, descriptor)
    os.close(file)


def _fail(text: str) -> NoReturn:
    os.write(2, f"maya-torchrun: {text}\n".encode())
    os._exit(1)


def begin_device() -> None:
    """Give this process virtual GPUs of its own."""
    _libc.maya_begin_rank()


def fold_errors() -> None:
    """This rank has failed: the launcher shows what it writes to standard error from now on, equal lines once."""
    _libc.maya_fold_errors()


def _own(value: object) -> object:
    return {} if value == {} else value  # annotations


def begin_interpreter(now_ns: int) -> None:
    """Give this process its own interpreter state: a new `__main__` module for the script (the present one is exempt
    from garbage collection), new random seeds and keys instead of those drawn while modules were imported, and the
    start time of the program, `now_ns`. (`random` and `tempfile` do this themselves.)"""
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
