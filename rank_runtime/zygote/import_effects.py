"""Detects the side effects of importing a module, as far as a process can observe its own.

In: the probe's process, in which `watch` is called once. Out: `since_last` returns the effects since its last call, in
words. `watch` changes the process: functions of `os`, `time` and `torch._C` are wrapped, output is discarded, and
actions with effects outside the process (writing files, starting processes, connecting) raise an exception.
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
from types import ModuleType
from typing import Any

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
_HARMLESS_CUDA = {"_cuda_isInBadFork", "_cuda_getCompiledVersion", "_cuda_getArchFlags"}
_PARTS_OF_TORCH = ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.distributed")
_SIGNALS = sorted(map(int, signal.valid_signals()))
_handler_of = sys.modules["_signal"].getsignal  # signal.getsignal would convert to an enumeration each time

READS_PROCESS_ID = "reads its process id"
REGISTERS_OPERATORS = "registers operators with torch"


class RefusedError(PermissionError):
    """Raised in a module that tries an action with effects outside the process. The module may handle it and go on."""


class ImportEffects:
    """Observes this process."""

    def __init__(self, rank_variables: frozenset[str]) -> None:
        self._rank_variables = rank_variables
        self._found: list[str] = []
        self._variables: dict[str, str | None] = {}  # environment variables read, and their values
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
            (os, ("getpid",), READS_PROCESS_ID),
            (os, ("getppid", "urandom", "getrandom"), "reads its parent's id or random bytes"),
            (
                time,
                ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
                "reads the clock",
            ),
        ):
            for name in names:
                self._wrap(module, name, effect)
        torch_c = sys.modules.get("torch._C")
        for name in [] if torch_c is None else list(vars(torch_c)):
            if name.startswith(("_cuda_", "_accelerator_", "_nccl_")) and name not in _HARMLESS_CUDA:
                self._wrap(torch_c, name, "uses the GPU")
        sys.addaudithook(self._audit)
        self._before = _state(self._output, self._torch_names)
        self._paused = False

    def since_last(self) -> tuple[list[str], dict[str, str | None]]:
        """Effects since the last call, and the environment variables read."""
        self._paused = True
        now = _state(self._output, self._torch_names)
        found = [*self._found, *(effect for effect, value in now.items() if value != self._before[effect])]
        variables = self._variables
        self._before, self._found, self._variables = now, [], {}
        self._paused = False
        return list(dict.fromkeys(found)), variables

    def _note(self, effect: str) -> None:
        if not self._paused:
            self._found.append(effect)

    def _wrap(self, module: Any, name: str, effect: str) -> None:
        wrapped = getattr(module, name, None)
        if not callable(wrapped) or isinstance(wrapped, type):
            return

        @functools.wraps(wrapped)
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self._note(effect)
            return wrapped(*arguments, **keywords)

        setattr(module, name, noted)

    def _trace_environment(self) -> None:
        environment = type(os.environ)
        read, iterate = environment.__getitem__, environment.__iter__

        def traced_read(environ: Any, key: str) -> str:
            if not self._paused and environ is os.environ:
                if key in self._rank_variables:
                    self._note(f"reads {key}")
                self._variables[key] = None
                self._variables[key] = read(environ, key)  # if it is there
            return read(environ, key)

        def traced_iterate(environ: Any) -> Iterator[str]:
            self._note("reads the whole environment")
            return iterate(environ)

        environment.__getitem__ = traced_read  # type: ignore[method-assign]
        environment.__iter__ = traced_iterate  # type: ignore[method-assign]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._paused:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and not _is_ours_to_write(path):
                self._refuse("writes files")
        elif event == "_thread.start_new_thread":
            self._note("starts a thread")
        elif event == "os.mkdir" and os.path.isdir(arguments[0]):  # noqa: PTH112
            pass  # makedirs(..., exist_ok=True) of a folder that is there
        elif event in _OUTSIDE_EVENTS:
            self._refuse(_OUTSIDE_EVENTS[event])
        elif event.startswith("shutil."):
            self._refuse("changes files")

    def _refuse(self, effect: str) -> None:
        self._note(effect)
        raise RefusedError(f"{effect}; not possible before ranks are forked")


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
        "starts a thread": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "opens files": _descriptors(),
        "prints": os.fstat(output).st_size,
        "changes the environment": dict(os.environ._data),  # type: ignore[attr-defined]
        "changes the working directory": os.getcwd(),  # noqa: PTH109
        "changes sys.path": (*sys.path, *map(id, sys.meta_path), *map(id, sys.path_hooks)),
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
            None if torch is None else torch.default_generator.get_state().tolist(),
        ),
        "changes torch's settings": None if torch is None else _torch_settings(torch),
        "replaces parts of torch": _torch_parts(torch_names),
        REGISTERS_OPERATORS: None if torch is None else _operators(torch),
    }


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


def _operators(torch: Any) -> tuple[int, int]:
    """Numbers of registrations. A rank that had to import such a module anew could not register its operators again."""
    return len(torch.library._defs), len(torch.library._impls)


class _Identities:
    """Objects compared by identity. References are kept, so that no new object can have the identity of an old one."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._objects = tuple(objects)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identities) or len(self._objects) != len(other._objects):
            return False
        return all(map(operator.is_, self._objects, other._objects))

    __hash__ = None  # type: ignore[assignment]


def keeps_process_id(module: ModuleType, process: int) -> bool:
    """Whether a variable of the module or of its classes holds the process id, or a text that contains it. Many modules
    read the id only for a path in /proc."""
    digits = str(process)

    def is_it(value: object) -> bool:
        if isinstance(value, (int, float)):
            return value == process
        return isinstance(value, (str, bytes, os.PathLike)) and digits in str(value)

    for value in vars(module).values():
        if is_it(value):
            return True
        if isinstance(value, type) and value.__module__ != module.__name__:
            continue
        if isinstance(value, (list, tuple, set, frozenset)):
            inside: Iterable[object] = value
        elif isinstance(value, dict):
            inside = [*value, *value.values()]
        elif isinstance(value, ModuleType):
            continue
        else:
            inside = getattr(value, "__dict__", {}).values()
        if any(map(is_it, list(inside))):
            return True
    return False
