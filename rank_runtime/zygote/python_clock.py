"""Python's clock functions, which show a script the time that the job would have on its cluster.

In: the virtual clock of the rank, which is kept in C (`maya_clock_host_ns`). Out: functions in the module `time` that
read it. They are installed before anything else is imported, so that `from time import perf_counter`,
`timeit.default_timer` and torch.utils.benchmark get them.

The calling module decides. Modules that wait for other processes, threads and files (`_REAL`) get real time, because
their timeouts refer to this machine; so does every process that a rank starts. All other modules, above all the script,
get virtual time: `time.time()` begins at the time when the job was started, which is the same for all ranks, and the
other clocks begin at 0. `time.sleep` advances the clock and really sleeps. `datetime_clock` replaces `datetime.now()`.
Other clocks that C code reads are real.

While the zygote imports modules for all ranks, the clock stays at 0. Below `maya exec` a process has real time until it
becomes a rank. From the next call on, its clocks go on at that point with the pace of virtual time.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rank_runtime.zygote.datetime_clock import replace_now

VARIABLE, START_VARIABLE = "MAYA_CLOCK", "MAYA_CLOCK_START"

# Packages and modules whose timeouts and timestamps refer to this machine; their submodules are included.
_OF_PYTHON = """
    threading queue sched selectors socket socketserver ssl subprocess multiprocessing concurrent asyncio signal http
    urllib ftplib smtplib imaplib poplib xmlrpc importlib zipimport pkgutil _frozen_importlib _frozen_importlib_external
    tempfile random uuid shelve dbm sqlite3 pdb bdb cProfile
"""  # threads, processes, connections, files
_OF_TORCH = """
    torch.distributed torch.multiprocessing torch.utils.data torch.utils.cpp_extension torch.profiler
    torch.autograd.profiler torch._inductor torch._dynamo torch._functorch torch._higher_order_ops torch._export
    torch.fx torch.package triton
"""  # rendezvous and watchdogs, data loading, compiling
_OF_OTHERS = """
    zmq urllib3 requests httpx httpcore aiohttp anyio trio tornado grpc boto3 botocore s3fs fsspec gcsfs google
    huggingface_hub filelock portalocker psutil ray dask wandb mlflow comet_ml neptune tensorboard tensorboardX
    jupyter_client ipykernel IPython pytest _pytest hypothesis debugpy joblib loky redis
"""  # connections, stores, background threads
_REAL = frozenset([*_OF_PYTHON.split(), *_OF_TORCH.split(), *_OF_OTHERS.split(), "rank_runtime"])
# Submodules of these that measure for the user.
_VIRTUAL = frozenset({"torch.distributed.pipelining", "torch.distributed._tools"})

_NANOSECONDS = 1_000_000_000


def is_real(module: str) -> bool:
    """Whether a module of this name gets real time."""
    while module:
        if module in _VIRTUAL:
            return False
        if module in _REAL:
            return True
        module = module.rpartition(".")[0]
    return False


class _Modules(dict[str, bool]):
    """A cache of `is_real`."""

    def __missing__(self, module: str) -> bool:
        real = self[module] = is_real(module)
        return real


class PythonClock:
    """The time that this process sees. The zygote makes one before it imports anything else."""

    def __init__(self, environment: Mapping[str, str], appeared: Callable[[], bool] | None = None) -> None:
        """Install the functions, if the job's clock is virtual. `appeared`: whether the process has become a rank, if
        it does so later."""
        self.is_installed = environment.get(VARIABLE) == "virtual"
        self._appeared = appeared
        self._offsets: dict[str, int] = {}  # ns that the clocks showed when the process became a rank
        self._real_time_ns = time.time_ns
        self.start_ns = int(environment.get(START_VARIABLE) or self._real_time_ns())
        self._now: Callable[[], int] | None = None
        self._delay: Callable[[int], None] = _no_delay
        if self.is_installed:
            self._now = _zero
            for name, make in _FUNCTIONS.items():
                real = getattr(time, name, None)
                if real is not None:
                    setattr(time, name, _Function(name, real, self, make))
            replace_now(self._time_for)
            os.register_at_fork(after_in_child=self._use_real_time)

    def begin(self) -> None:
        """In a rank: show virtual time from now on, if the rank has a virtual clock."""
        if not self.is_installed:
            return
        library = ctypes.CDLL(None)
        try:
            read, delay, is_virtual = (
                library.maya_clock_host_ns,
                library.maya_clock_delay,
                library.maya_clock_is_virtual,
            )
        except AttributeError:  # the fake libraries are not loaded
            self._use_real_time()
            return
        read.argtypes, read.restype = [], ctypes.c_uint64
        delay.argtypes, delay.restype = [ctypes.c_uint64], None
        if is_virtual():
            self._now, self._delay = read, delay
        else:
            self._use_real_time()

    def wait_to_appear(self) -> None:
        """Show real time until the process has become a rank."""
        self._now = None

    def now(self) -> Callable[[], int] | None:
        """The virtual clock; None: the process has real time."""
        if self._now is None and self._appeared is not None and self._appeared():
            self._appeared = None
            self.begin()
            if self._now is not None:
                virtual = self._now()
                self.start_ns = self._real_time_ns() - virtual
                self._offsets = {name: real() - virtual for name, real in _REAL_CLOCKS.items()}
        return self._now

    def offset_ns(self, name: str) -> int:
        """The value of a clock of Python's when virtual time was 0."""
        return self._offsets.get(name, 0)

    def time_ns(self) -> int:
        """The value that `time.time_ns()` returns to a script."""
        return self._real_time_ns() if self._now is None else self.start_ns + self._now()

    def _time_for(self, module: str) -> int | None:
        """The value of `time.time_ns()` for a caller's module; None: real time."""
        now = self.now()
        return None if now is None or _has_real_time[module] else self.start_ns + now()

    def _use_real_time(self) -> None:
        """Also in a forked child, which may become a rank itself only if its parent is none."""
        self._now = None
        if self._offsets:
            self._appeared = None


def _zero() -> int:
    return 0


def _no_delay(ns: int) -> None:
    pass


# ---- the functions ----

Virtual = Callable[..., Any]  # called with the clock, its `now` function, the real function and the arguments


class _Function:
    """Replaces a built-in function, with its name, docstring and signature. Like a built-in function, and unlike one
    written in Python, it does not become a method when it is a class attribute (`timer = time.perf_counter`)."""

    def __init__(self, name: str, real: Callable[..., Any], clock: PythonClock, virtual: Virtual) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "time"
        self.__doc__ = real.__doc__
        self.__text_signature__ = getattr(real, "__text_signature__", None)
        self.__self__ = time
        self._real = real
        self._clock = clock
        self._virtual = virtual

    def __call__(self, *arguments: Any) -> Any:
        now = self._clock._now or self._clock.now()
        if now is None or _has_real_time[sys._getframe(1).f_globals.get("__name__") or ""]:
            return self._real(*arguments)
        return self._virtual(self._clock, now, self._real, *arguments)

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__  # pickle finds it in the module


_has_real_time = _Modules()


def _seconds(clock: PythonClock, now: Callable[[], int], real: Any) -> float:
    return (clock.offset_ns(real.__name__) + now()) / _NANOSECONDS


def _ns(clock: PythonClock, now: Callable[[], int], real: Any) -> int:
    return clock.offset_ns(real.__name__.removesuffix("_ns")) + now()


def _wall_seconds(clock: PythonClock, now: Callable[[], int], real: Any) -> float:
    return (clock.start_ns + now()) / _NANOSECONDS


def _wall_ns(clock: PythonClock, now: Callable[[], int], real: Any) -> int:
    return clock.start_ns + now()


def _sleep(clock: PythonClock, now: Callable[[], int], real: Any, seconds: Any) -> None:
    real(seconds)  # raises if it is not a valid time
    clock._delay(round(seconds * _NANOSECONDS))


def _broken_down(clock: PythonClock, now: Callable[[], int], real: Any, seconds: Any = None) -> Any:
    """localtime, gmtime, ctime: of the argument or, without one, of the present."""
    return real(_wall_seconds(clock, now, real) if seconds is None else seconds)


def _formatted(clock: PythonClock, now: Callable[[], int], real: Any, *arguments: Any) -> Any:
    """asctime, strftime: the time is the last argument and optional."""
    wanted = 2 if real.__name__ == "strftime" else 1
    if len(arguments) == wanted - 1:
        return real(*arguments, _real_localtime(_wall_seconds(clock, now, real)))
    return real(*arguments)


def _gettime(clock: PythonClock, now: Callable[[], int], real: Any, which: int) -> Any:
    if which == time.CLOCK_REALTIME:
        return _wall_seconds(clock, now, real)
    return _gettime_ns(clock, now, real, which) / _NANOSECONDS if which in _MONOTONIC else real(which)


def _gettime_ns(clock: PythonClock, now: Callable[[], int], real: Any, which: int) -> Any:
    if which == time.CLOCK_REALTIME:
        return _wall_ns(clock, now, real)
    return clock.offset_ns(_MONOTONIC[which]) + now() if which in _MONOTONIC else real(which)


_real_localtime = time.localtime
_MONOTONIC = {  # and the clock of Python's that counts from the same moment
    getattr(time, name): clock
    for name, clock in (
        ("CLOCK_MONOTONIC", "monotonic"),
        ("CLOCK_MONOTONIC_RAW", "monotonic"),
        ("CLOCK_BOOTTIME", "monotonic"),
        ("CLOCK_PROCESS_CPUTIME_ID", "process_time"),
        ("CLOCK_THREAD_CPUTIME_ID", "thread_time"),
    )
    if hasattr(time, name)
}
_REAL_CLOCKS = {
    "perf_counter": time.perf_counter_ns,
    "monotonic": time.monotonic_ns,
    "process_time": time.process_time_ns,
    "thread_time": time.thread_time_ns,
}
_FUNCTIONS: dict[str, Virtual] = {
    "time": _wall_seconds,
    "time_ns": _wall_ns,
    **dict.fromkeys(("perf_counter", "monotonic", "process_time", "thread_time"), _seconds),
    **dict.fromkeys(("perf_counter_ns", "monotonic_ns", "process_time_ns", "thread_time_ns"), _ns),
    "sleep": _sleep,
    **dict.fromkeys(("localtime", "gmtime", "ctime"), _broken_down),
    **dict.fromkeys(("asctime", "strftime"), _formatted),
    "clock_gettime": _gettime,
    "clock_gettime_ns": _gettime_ns,
}
