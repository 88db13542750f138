"""Detects the side effects of importing a module, as far as a process can observe its own.

In: the probe's process, in which `watch` is called once. Out: `since_last` returns what happened since its last call:
effects in words, uses of the environment, files read. Effects that a rank can repeat (`import_replay`) are left out.
`watch` changes the process: functions of `os`, `time` and `torch._C` are wrapped, output is discarded, and actions with
effects outside the process (writing files, starting processes, connecting) raise an exception.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

from rank_runtime.zygote.import_replay import DEVICE_QUERIES, InterpreterLists, OwnProcessId, list_edits

_OUTSIDE_EVENTS = {  # audit events of actions with effects outside the process
    "os.exec": "starts a program",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.spawn": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
    "os.kill": "sends a signal",
    "os.killpg": "sends a signal",
    "os.chmod": "changes files",
    "os.chown": "changes files",
    "os.link": "changes files",
    "os.mkdir": "changes files",
    "os.remove": "changes files",
    "os.rename": "changes files",
    "os.rmdir": "changes files",
    "os.symlink": "changes files",
    "os.truncate": "changes files",
    "os.utime": "changes files",
    "sqlite3.connect": "opens a database",
    "tempfile.mkdtemp": "makes temporary files",
    "tempfile.mkstemp": "makes temporary files",
    "socket.bind": "uses the network",
    "socket.connect": "uses the network",
    "socket.getaddrinfo": "uses the network",
    "socket.sendto": "uses the network",
    "urllib.Request": "uses the network",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS_CUDA = {"_cuda_isInBadFork", "_cuda_getCompiledVersion", "_cuda_getArchFlags", *DEVICE_QUERIES}
# An allocator's thread that returns memory to the operating system. The allocator stops it around a fork.
_THREADS_OF_ALLOCATORS = ("jemalloc_bg_thd",)
_PARTS_OF_TORCH = ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.distributed")
_SIGNALS = sorted(map(int, signal.valid_signals()))
_handler_of = sys.modules["_signal"].getsignal  # signal.getsignal would convert to an enumeration each time

READS_PROCESS_ID = "reads its process id"
WHOLE_ENVIRONMENT = "reads the whole environment"


class RefusedError(PermissionError):
    """Raised in a module that tries an action with effects outside the process. The module may handle it and go on."""


# A use of the environment: when, "read" or "set" or "prefix", the variable's name (or the prefix), its value. Code that
# looks for variables by a prefix depends on any other variable of that prefix as well.
EnvironmentUse = tuple[int, str, str, "str | None"]


def differs(use: EnvironmentUse, now: dict[str, str | None], new: Iterable[str]) -> bool:
    """Whether code that used the environment so would find another one now. `new`: variables that there were not. To
    be called for all uses in their order: what is set is put into `now`."""
    _, kind, name, value = use
    if kind == "set":
        now[name] = value
    elif kind == "read":
        return now.get(name) != value
    else:
        return any(each.startswith(name) for each in new)
    return False


@dataclass
class Happened:
    """What was observed during some time."""

    effects: list[tuple[str, int | None]] = field(default_factory=list)  # with the line of the module's own code
    environment: list[EnvironmentUse] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # opened for reading


class ImportEffects:
    """Observes this process."""

    def __init__(self, rank_variables: frozenset[str], uses: int = 0) -> None:
        """`uses` of the environment before this process."""
        self.rank_variables = rank_variables
        self._happened = Happened()
        self._uses = uses  # of the environment so far
        self._expected_environment: dict[Any, Any] = {}
        self._name_in_use: _VariableName | None = None  # the last name that an iteration over the environment gave
        self._paused = True  # while set, nothing is noted: this class reads and writes itself
        self._output = os.memfd_create("maya-probe-output")
        self._torch_names = _names_in_torch()
        self._before: dict[str, Any] = {}

    def watch(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        self._trace_environment()
        sys.argv = _TracedArguments(sys.argv, lambda: self._note("reads sys.argv"))
        for module, names, effect in (
            (os, ("getppid", "urandom", "getrandom"), "reads its parent's id or random bytes"),
            (
                time,
                ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
                "reads the clock",
            ),
        ):
            for name in names:
                self._wrap(module, name, effect)
        self._trace_process_id()
        torch_c = sys.modules.get("torch._C")
        for name in [] if torch_c is None else list(vars(torch_c)):
            if name.startswith(("_cuda_", "_accelerator_", "_nccl_")) and name not in _HARMLESS_CUDA:
                self._wrap(torch_c, name, "uses the GPU")
        sys.addaudithook(self._audit)
        self._expected_environment = dict(os.environ._data)  # type: ignore[attr-defined]
        self._before = _state(self._output, self._torch_names)
        self._paused = False

    def since_last(self) -> Happened:
        """What happened since the last call."""
        self._name_was_used()
        self._paused = True
        now = _state(self._output, self._torch_names)
        happened = self._happened
        happened.effects += [(effect, None) for effect, value in now.items() if not _same(self._before[effect], value)]
        if dict(os.environ._data) != self._expected_environment:  # type: ignore[attr-defined]
            happened.effects.append(("changes the environment", None))
            self._expected_environment = dict(os.environ._data)  # type: ignore[attr-defined]
        self._before, self._happened = now, Happened()
        self._paused = False
        return happened

    def _note(self, effect: str) -> None:
        if not self._paused:
            self._happened.effects.append((effect, _line_of_module()))

    def _use(self, kind: str, name: str, value: str | None) -> None:
        self._uses += 1
        self._happened.environment.append((self._uses, kind, name, value))

    def _wrap(self, module: Any, name: str, effect: str) -> None:
        wrapped = getattr(module, name, None)
        if not callable(wrapped) or isinstance(wrapped, type):
            return

        @functools.wraps(wrapped)
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self._note(effect)
            return wrapped(*arguments, **keywords)

        setattr(module, name, noted)

    def _trace_process_id(self) -> None:
        getpid = os.getpid

        @functools.wraps(getpid)
        def noted() -> int:
            self._note(READS_PROCESS_ID)
            return OwnProcessId(getpid())

        os.getpid = noted

    def _trace_environment(self) -> None:
        environment = type(os.environ)
        read, iterate = environment.__getitem__, environment.__iter__
        write, delete = environment.__setitem__, environment.__delitem__

        def observed(environ: Any) -> bool:
            return not self._paused and environ is os.environ

        def traced_read(environ: Any, key: str) -> str:
            if observed(environ):
                if key in self.rank_variables:
                    self._note(f"reads {key}")
                self._use("read", str(key), str(read(environ, key)) if environ._data.get(_bytes(key)) else None)
            return read(environ, key)

        def traced_iterate(environ: Any) -> Iterator[str]:
            if not observed(environ):
                yield from iterate(environ)
                return
            for name in iterate(environ):
                self._name_was_used()
                self._name_in_use = _VariableName(name, self._tell_of_name)
                yield self._name_in_use
            self._name_was_used()

        def traced_write(environ: Any, key: str, value: str) -> None:
            self._change(observed(environ), key, value)
            write(environ, key, value)

        def traced_delete(environ: Any, key: str) -> None:
            self._change(observed(environ) and _bytes(key) in environ._data, key, None)
            delete(environ, key)

        environment.__getitem__ = traced_read  # type: ignore[method-assign]
        environment.__iter__ = traced_iterate  # type: ignore[method-assign]
        environment.__setitem__ = traced_write  # type: ignore[method-assign]
        environment.__delitem__ = traced_delete  # type: ignore[method-assign]

    def _change(self, is_observed: bool, key: str, value: str | None) -> None:
        if not is_observed:
            return
        if key in self.rank_variables:
            self._note(f"changes {key}")
        self._use("set", str(key), value)
        if value is None:
            self._expected_environment.pop(_bytes(key), None)
        else:
            self._expected_environment[_bytes(key)] = _bytes(value)

    def _tell_of_name(self, name: _VariableName, prefix: str | None) -> None:
        """A name that an iteration gave was compared with a prefix, which it does not have, or used in any other way
        (None)."""
        if self._paused:
            return
        if prefix is not None:
            self._use("prefix", prefix, None)
        elif not name.has_prefix:
            self._note(WHOLE_ENVIRONMENT)

    def _name_was_used(self) -> None:
        """Before the next name: nobody looked at the prefix of the last one, so something else was done with it."""
        name, self._name_in_use = self._name_in_use, None
        if name is not None and not name.was_compared:
            self._note(WHOLE_ENVIRONMENT)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._paused:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and not _is_ours_to_write(path):
                self._refuse("writes files")
            elif isinstance(path, str) and "__pycache__" not in path:
                self._happened.files.append(path)
        elif event == "_thread.start_new_thread":
            self._note("starts a thread")
        elif event in ("os.putenv", "os.unsetenv"):
            # os.environ calls these after `_change` has noted the change.
            key = arguments[0]
            if self._expected_environment.get(key) != (arguments[1] if event == "os.putenv" else None):
                self._note("changes the environment")
        elif event == "os.mkdir" and os.path.isdir(arguments[0]):  # noqa: PTH112
            pass  # makedirs(..., exist_ok=True) of a folder that is there
        elif event in _OUTSIDE_EVENTS:
            self._refuse(_OUTSIDE_EVENTS[event])
        elif event.startswith("shutil."):
            self._refuse("changes files")

    def _refuse(self, effect: str) -> None:
        self._note(effect)
        raise RefusedError(f"{effect}; not possible before ranks are forked")


class _VariableName(str):
    """The name of an environment variable, given by an iteration, that tells what is done with it."""

    _tell: Callable[[_VariableName, str | None], None]
    has_prefix: bool
    was_compared: bool

    def __new__(cls, name: str, tell: Callable[[_VariableName, str | None], None]) -> _VariableName:
        made = super().__new__(cls, name)
        made._tell = tell
        made.was_compared = made.has_prefix = False
        return made

    def startswith(
        self, prefix: str | tuple[str, ...], start: SupportsIndex | None = None, end: SupportsIndex | None = None
    ) -> bool:
        if start is not None or end is not None:
            return bool(self._used(super().startswith(prefix, start, end)))
        found = super().startswith(prefix)
        self.was_compared = True
        self.has_prefix |= found
        for each in (prefix,) if isinstance(prefix, str) else prefix:
            self._tell(self, each)
        return found

    def _used(self, result: Any) -> Any:
        self._tell(self, None)
        return result


def _telling(name: str) -> Callable[..., Any]:
    original = getattr(str, name)

    @functools.wraps(original)
    def used(self: _VariableName, *arguments: Any, **keywords: Any) -> Any:
        return self._used(original(self, *arguments, **keywords))

    return used


for _name in (name for name in dir(str) if callable(getattr(str, name))):
    if _name not in dir(object) and _name != "startswith":
        setattr(_VariableName, _name, _telling(_name))
for _name in (
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__format__",
    "__repr__",
    "__str__",
):
    setattr(_VariableName, _name, _telling(_name))


class _TracedArguments(list[str]):
    """A list that calls `tell` when it is read."""

    def __init__(self, items: list[str], tell: Callable[[], None]) -> None:
        super().__init__(items)
        self._tell = tell

    def __getitem__(self, index: Any) -> Any:
        self._tell()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self._tell()
        return super().__iter__()

    def __len__(self) -> int:
        self._tell()
        return super().__len__()


def _is_ours_to_write(path: object) -> bool:
    """Whether the path is a compiled module, which Python writes next to its source, or /dev/null."""
    return isinstance(path, str) and ("__pycache__" in path or path == os.devnull)


def _state(output: int, torch_names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """For each effect, a state that differs before and after it happens."""
    torch = sys.modules.get("torch")
    numpy_random = sys.modules.get("numpy.random")
    logging = sys.modules.get("logging")
    return {
        "starts a thread": _threads(),
        "opens files": _descriptors(),
        "prints": os.fstat(output).st_size,
        "changes the working directory": os.getcwd(),  # noqa: PTH109
        "changes sys.path": InterpreterLists(),
        "changes sys.argv": list.copy(sys.argv),
        "replaces standard streams or hooks": _Identities(
            getattr(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")
        ),
        "replaces built-in functions": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "handles signals": _Identities(map(_handler_of, _SIGNALS)),
        "configures logging": None if logging is None else (*map(id, logging.root.handlers), logging.root.level),
        "uses random numbers": (
            random.getstate(),
            None if numpy_random is None else _numpy_state(numpy_random),
            None if torch is None else bytes(torch.default_generator.get_state().numpy()),
        ),
        "changes torch's settings": None if torch is None else _torch_settings(torch),
        "replaces parts of torch": _torch_parts(torch_names),
    }


def _same(before: Any, now: Any) -> bool:
    """Whether the state is the same, or ranks can repeat the change."""
    if isinstance(before, InterpreterLists):
        return all(list_edits(old, new) is not None for old, new in zip(before.lists, now.lists, strict=True))
    return bool(before == now)


def _threads() -> int:
    """The number of threads, without those of allocators."""
    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    if len(threads) == 1:
        return 1
    return sum(_name_of_thread(thread) not in _THREADS_OF_ALLOCATORS for thread in threads)


def _name_of_thread(thread: str) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").rstrip("\n")
    except OSError:  # it has ended
        return ""


def _bytes(text: str) -> bytes:
    return os.fsencode(text)


def _line_of_module() -> int | None:
    """The line that runs in the module which is being imported."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except FileNotFoundError:  # the descriptor of listdir itself
            continue
    return found


def _numpy_state(numpy_random: Any) -> tuple[bytes, int]:
    _, keys, position, *_ = numpy_random.get_state()
    return keys.tobytes(), position


def _torch_settings(torch: Any) -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_warn_always_enabled(),
    )


def _names_in_torch() -> dict[str, tuple[str, ...]]:
    """The names that modules may replace. Later attributes do not count, because submodules become attributes."""
    return {name: tuple(vars(sys.modules[name])) for name in _PARTS_OF_TORCH if name in sys.modules}


def _torch_parts(names: dict[str, tuple[str, ...]]) -> _Identities:
    return _Identities(part for name in names for part in map(vars(sys.modules[name]).get, names[name]))


class _Identities:
    """Objects compared by identity. References are kept, so that no new object can have the identity of an old one."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._objects = tuple(objects)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identities) or len(self._objects) != len(other._objects):
            return False
        return all(map(operator.is_, self._objects, other._objects))

    __hash__ = None  # type: ignore[assignment]
