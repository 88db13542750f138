"""One worker as a child process, from start to end.

In: a command, its environment, where its output goes and which signals to pass on. Out: an `Outcome`. The worker has a
session of its own, as under torchrun, so that Ctrl-C reaches only the launcher, which forwards it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from maya.torchrun.logs import Follower, Output, WorkerFiles


class StartError(Exception):
    """The command could not be started at all."""


@dataclass(frozen=True)
class Outcome:
    """How a worker ended. A negative exit code is the signal that ended it, as in `subprocess`."""

    pid: int
    exit_code: int
    stopped_by: signal.Signals | None  # what the launcher was told to stop with


class Worker:
    """Runs a command once."""

    def __init__(self, signals: Sequence[signal.Signals], shutdown_seconds: float) -> None:
        self._signals = signals
        self._shutdown_seconds = shutdown_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by: signal.Signals | None = None
        self._executioner: threading.Timer | None = None

    def run(self, command: Sequence[str], environment: Mapping[str, str], files: WorkerFiles, prefix: str) -> Outcome:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._forwarding())
            stdout = stack.enter_context(_open(files.stdout))
            stderr = stack.enter_context(_open(files.stderr))
            try:
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    preexec_fn=_end_with_parent(),
                )
            except OSError as error:
                raise StartError(f"cannot start {command[0]}: {error.strerror}") from error
            self._process = process
            if self._stopped_by is not None:  # it came before there was a process to pass it to
                self._pass_on(self._stopped_by)
            followers = [
                *_follow(files.stdout, prefix, sys.stdout),
                *_follow(files.stderr, prefix, sys.stderr),
            ]
            exit_code = process.wait()
            if self._executioner is not None:
                self._executioner.cancel()
            if exit_code != 0 or self._stopped_by is not None:
                self._signal_group(signal.SIGKILL)  # data loaders and the like, which have lost their parent
            for follower in followers:
                follower.finish()
            return Outcome(process.pid, exit_code, self._stopped_by)

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        # A launcher started with nohup is meant to outlive its terminal.
        handled = [s for s in self._signals if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopped_by = signal.Signals(number)
        if self._process is not None:
            self._pass_on(self._stopped_by)

    def _pass_on(self, number: signal.Signals) -> None:
        line = f"maya-torchrun: got {number.name}, passing it on; SIGKILL in {self._shutdown_seconds:g} s"
        print(line, file=sys.stderr)
        self._signal_group(number)
        if self._executioner is None:
            self._executioner = threading.Timer(self._shutdown_seconds, self._signal_group, [signal.SIGKILL])
            self._executioner.daemon = True
            self._executioner.start()

    def _signal_group(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _end_with_parent() -> Callable[[], None]:
    """What a child does before it becomes the worker: ask to be killed when the launcher is, however that happens."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    prctl = ctypes.CDLL(None).prctl
    launcher = os.getpid()

    def ask() -> None:
        prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before we asked
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def _open(output: Output) -> contextlib.AbstractContextManager[IO[bytes] | None]:
    return contextlib.nullcontext() if output.file is None else output.file.open("wb")


def _follow(output: Output, prefix: str, console: TextIO) -> list[Follower]:
    return [Follower(_path(output), prefix, console)] if output.follow else []


def _path(output: Output) -> Path:
    assert output.file is not None, "only a file can be followed"
    return output.file
