"""The zygote's life: imports modules, forks the coordinator and the ranks, reports how they end, and ends last.

In: a `Preparation`, a `Start` and commands of the launcher. Out: reports to the launcher (see `protocol`), the ends of
ranks to the coordinator, too. `main` returns in ranks only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from rank_runtime.zygote.ahead import describe_operators, make_room_for_instances, number_types
from rank_runtime.zygote.clock import Clock
from rank_runtime.zygote.ending import RankEndings
from rank_runtime.zygote.immortal import WORTHWHILE, make_immortal
from rank_runtime.zygote.memory import fill_holes, give_back_large_blocks
from rank_runtime.zygote.preload import Preload
from rank_runtime.zygote.protocol import Descriptors, EntryPoint, Lines, PlanFile, RankStart, write_line
from rank_runtime.zygote.rank import (
    become_rank,
    begin_device,
    begin_interpreter,
    end_with,
    name_of_process,
    name_process,
    outlive_parent,
    start_anew,
)

_COORDINATOR_END_SECONDS = 5.0
_LONGEST_REPORT = 3500  # of the 4096 bytes that a pipe takes in one piece


def main(root: str, descriptors: str, python_has: frozenset[str]) -> None:
    """Be the zygote that a launcher has started; return as a rank. `python_has`: modules that were there before us."""
    inherited = Descriptors.parse(descriptors)
    end_with(inherited.launcher)
    zygote = Zygote(root, inherited, python_has)
    try:
        zygote.run()
    except Exception as error:
        _print_exception()
        if os.getpid() != zygote.process:  # a rank that could not begin
            os._exit(1)
        zygote.report({"zygote_failed": f"{type(error).__name__}: {error}"})
        zygote.end(1)


class Zygote:
    """The process, before and while there are ranks."""

    def __init__(self, root: str, descriptors: Descriptors, python_has: frozenset[str]) -> None:
        self.process = os.getpid()
        self._clock = Clock(os.environ)
        self._name = name_of_process()
        name_process("maya-zygote")
        self._root = root
        self._launcher = descriptors.launcher
        self._reports = descriptors.reports
        self._commands = Lines(descriptors.commands)
        self._plan = PlanFile(descriptors.plan)
        self._preparation = self._plan.preparation()
        self._ending = RankEndings(self._preparation.world_size)
        self._preload = Preload(self._preparation, python_has)
        self._rank_of: dict[int, int] = {}  # running ranks, by process
        self._coordinator = 0  # its process
        self._coordinator_pipe: int | None = None
        self._start_came = False
        self._stopping = False
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own = [descriptors.plan, descriptors.commands, descriptors.reports, self._wakeup, wakeup_write]
        for descriptor in self._own:
            os.set_inheritable(descriptor, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a child's end ends a wait

    def run(self) -> None:
        """Returns in a rank."""
        preparation = self._preparation
        self.report({"importing": True})
        gc.disable()
        self._preload.import_first()
        if preparation.coordinator:
            self._fork_coordinator()
        self._preload.import_rest(self._own)
        self.report({"unshared": _shortened(self._preload.unshared)})
        if self._preload.problem is not None:
            self.report({"not_forked": self._preload.problem})
        self._ending.share_modules(self._preload.shared)
        describe_operators()
        many = preparation.world_size >= WORTHWHILE
        if many:
            number_types()
            make_room_for_instances()
        gc.enable()
        gc.collect()
        give_back_large_blocks()
        if many:
            make_immortal()
        fill_holes()
        gc.freeze()  # so that collecting garbage in a rank does not touch, and thereby copy, what it shares
        self.report({"ready": True})
        while not self._start_came:
            self._turn(None)
        # From now on the end of the launcher is noticed by the end of the pipe, and there is something to do about it.
        outlive_parent(self._launcher)
        if self._fork_ranks():
            return
        while True:
            self._turn(self._ending.look_after())

    def report(self, line: dict[str, Any]) -> None:
        write_line(self._reports, line)

    def _report_to_both(self, line: dict[str, Any]) -> None:
        """To the launcher and to the coordinator."""
        self.report(line)
        self._tell_coordinator(line)

    def _tell_coordinator(self, line: dict[str, Any]) -> None:
        if self._coordinator_pipe is not None:
            write_line(self._coordinator_pipe, line)

    def end(self, status: int) -> NoReturn:
        """Nothing that was started here is left."""
        for process in self._rank_of:
            _signal_group(process, signal.SIGKILL)
        if self._coordinator:
            os.kill(self._coordinator, signal.SIGTERM)
        deadline = time.monotonic() + _COORDINATOR_END_SECONDS
        while self._rank_of or self._coordinator:
            if self._coordinator and time.monotonic() > deadline:
                os.kill(self._coordinator, signal.SIGKILL)
            self._wait(0.1, with_commands=False)
            self._reap()
        os._exit(status)

    def _fork_coordinator(self) -> None:
        pipe_read, pipe_write = os.pipe2(os.O_CLOEXEC)
        self._coordinator = os.fork()
        if self._coordinator == 0:
            os._exit(self._be_coordinator(pipe_read, pipe_write))
        os.close(pipe_read)
        self._coordinator_pipe = pipe_write
        self._own.append(pipe_write)

    def _be_coordinator(self, pipe_read: int, pipe_write: int) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (pipe_write, *self._own):
            if descriptor != self._reports:
                os.close(descriptor)
        sys.path.insert(0, self._root)
        try:
            module, _, function = self._preparation.coordinator.partition(":")
            run: EntryPoint = getattr(importlib.import_module(module), function)
            return run(self._preparation.coordinator_settings, self._reports, pipe_read, self.process)
        except Exception as error:
            _print_exception()
            self.report({"coordinator_failed": f"{type(error).__name__}: {error}"})
            return 1

    def _fork_ranks(self) -> bool:
        """Whether this is a rank."""
        start = self._plan.start()
        os.environ.clear()
        os.environ.update(start.environment)
        for rank in start.ranks:
            if self._stopping:
                break
            try:
                process = os.fork()
            except OSError as error:
                self.report({"zygote_failed": f"cannot fork rank {rank.rank}: {error.strerror}"})
                self.end(1)
            if process == 0:
                self._be_rank(rank)
                return True
            self._rank_of[process] = rank.rank
            self._report_to_both({"started": {"rank": rank.rank, "pid": process}})
            self._turn(0)
        self.report({"forked": True})
        return False

    def _be_rank(self, start: RankStart) -> None:
        name_process(self._name)
        become_rank(start, self.process, self._own)
        if not self._preparation.share or self._preload.problem is not None:
            start_anew(start.command)
        begin_device()
        self._clock.begin()
        begin_interpreter(self._clock.time_ns())
        self._preload.shared.begin()
        self._ending.begin(start.rank)

    def _turn(self, seconds: float | None) -> None:
        """Wait for something to happen, and do what follows from it."""
        if self._wait(seconds, with_commands=True):
            for command in self._commands.read():
                self._start_came |= "start" in command
                if "signal" in command:
                    self._stopping = True
                    self._tell_coordinator({"stopping": {}})
                    for process in self._rank_of:
                        _signal_group(process, command["signal"])
                if "continue" in command:
                    for process in self._rank_of:
                        _signal_group(process, signal.SIGCONT)
                    self._tell_coordinator({"continued": {}})
            if self._commands.ended:
                self.end(0)
        self._reap()

    def _wait(self, seconds: float | None, *, with_commands: bool) -> bool:
        """Whether there are commands; children may have ended."""
        descriptors = [self._wakeup, *([self._commands.descriptor] if with_commands else [])]
        ready = select.select(descriptors, [], [], seconds)[0]
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
        return self._commands.descriptor in ready

    def _reap(self) -> None:
        # Looked at first and collected afterwards: until then its number cannot become that of another process.
        while (self._rank_of or self._coordinator) and (
            ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ):
            process = ended.si_pid
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            rank = self._rank_of.pop(process, None)
            if rank is not None and (status != 0 or self._stopping):
                _signal_group(process, signal.SIGKILL)  # data loaders and the like, which have lost their parent
            os.waitpid(process, 0)
            if process == self._coordinator:
                self._coordinator = 0
                self.report({"coordinator_exited": {"pid": process, "status": status}})
            elif rank is not None:
                self._ending.gone(rank)
                self._report_to_both({"exited": {"rank": rank, "status": status}})


def _print_exception() -> None:
    """If there is still somewhere to print it."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()


def _signal_group(process: int, number: int) -> None:
    try:
        os.killpg(process, number)
    except ProcessLookupError:  # it has not made a group of its own yet
        os.kill(process, number)


def _shortened(reasons: dict[str, str]) -> dict[str, str]:
    """Few enough for a line that is written at once: those that are not merely a consequence of others."""
    causes: dict[str, str] = {}
    for name, reason in reasons.items():
        if not reason.startswith("imports ") and len(json.dumps(causes)) + len(name) < _LONGEST_REPORT:
            causes[name] = reason
    return causes
