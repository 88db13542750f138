"""The zygote's life: imports modules, forks the coordinator and the ranks, reports their exits, and ends last.

In: a `Preparation`, a `Start` and commands from the launcher. Out: reports to the launcher (see `protocol`); the
coordinator gets the starts and exits of ranks as well. `main` returns in ranks only.
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

from rank_runtime.zygote.compile_sharing import share_compiled_graphs
from rank_runtime.zygote.compile_trials import hide_compile_trials
from rank_runtime.zygote.equal_tracebacks import fold_equal_tracebacks
from rank_runtime.zygote.host_tensors import watch_host_tensors
from rank_runtime.zygote.immortal_objects import FEWEST_RANKS, make_objects_immortal
from rank_runtime.zygote.prefork import assign_type_versions, grow_pybind_table, prepare_observer
from rank_runtime.zygote.preload import Preload
from rank_runtime.zygote.process_groups import observe_process_groups
from rank_runtime.zygote.protocol import Descriptors, EntryPoint, Lines, PlanFile, RankStart, write_line
from rank_runtime.zygote.python_clock import PythonClock
from rank_runtime.zygote.rank import (
    become_rank,
    begin_device,
    begin_interpreter,
    die_with_parent,
    exec_command,
    fold_errors,
    name_of_process,
    name_process,
    outlive_parent,
)
from rank_runtime.zygote.rank_exit import RankExit
from rank_runtime.zygote.shared_heap import fill_holes, give_back_large_blocks
from rank_runtime.zygote.triton_sharing import share_triton_kernels

_COORDINATOR_END_SECONDS = 5.0
_LONGEST_REPORT = 3500  # bytes; a pipe accepts up to 4096 atomically


def main(root: str, descriptors: str, python_has: frozenset[str]) -> None:
    """Be the zygote that a launcher has started; return as a rank. `python_has`: modules that Python imported."""
    inherited = Descriptors.parse(descriptors)
    die_with_parent(inherited.launcher)
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
        self._clock = PythonClock(os.environ)
        self._name = name_of_process()
        name_process("maya-zygote")
        self._root = root
        self._launcher = descriptors.launcher
        self._reports = descriptors.reports
        self._commands = Lines(descriptors.commands)
        self._plan = PlanFile(descriptors.plan)
        self._preparation = self._plan.preparation()
        self._rank_exit = RankExit(self._preparation.world_size, self._preparation.processes)
        self._preload = Preload(self._preparation, python_has)
        self._rank_of: dict[int, int] = {}  # running ranks, by process
        self._coordinator = 0  # process id; 0: there is none
        self._coordinator_pipe: int | None = None
        self._start_requested = False
        self._stopping = False
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptors = [descriptors.plan, descriptors.commands, descriptors.reports, self._wakeup, wakeup_write]
        for descriptor in self._descriptors:
            os.set_inheritable(descriptor, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the exit of a child interrupts a wait

    def run(self) -> None:
        """Returns in a rank."""
        preparation = self._preparation
        self.report({"importing": True})
        gc.disable()
        self._preload.import_first()
        if preparation.coordinator:
            self._fork_coordinator()
        self._preload.import_rest(self._descriptors)
        self.report({"unshared": _shortened(self._preload.unshared)})
        self.report({"imports": self._preload.counts})
        if self._preload.problem is not None:
            self.report({"not_forked": self._preload.problem})
        self._rank_exit.share_modules(self._preload.shared)
        prepare_observer()
        many = preparation.processes >= FEWEST_RANKS
        if many:
            assign_type_versions()
            grow_pybind_table()
        gc.enable()
        gc.collect()
        give_back_large_blocks()
        if many:
            make_objects_immortal()
        fill_holes()
        gc.freeze()  # garbage collection in a rank then does not write to, and thereby copy, shared pages
        self.report({"ready": True})
        while not self._start_requested:
            self._turn(None)
        # From now on the zygote notices the end of the launcher by the closed pipe, and has to kill the ranks then.
        outlive_parent(self._launcher)
        if self._fork_ranks():
            return
        while True:
            self._turn(self._rank_exit.admit_when_stuck())

    def report(self, line: dict[str, Any]) -> None:
        write_line(self._reports, line)

    def _report_to_both(self, line: dict[str, Any]) -> None:
        """Report to the launcher and to the coordinator."""
        self.report(line)
        self._tell_coordinator(line)

    def _tell_coordinator(self, line: dict[str, Any]) -> None:
        if self._coordinator_pipe is not None:
            write_line(self._coordinator_pipe, line)

    def end(self, status: int) -> NoReturn:
        """End the ranks and the coordinator, then this process."""
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
        self._descriptors.append(pipe_write)

    def _be_coordinator(self, pipe_read: int, pipe_write: int) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (pipe_write, *self._descriptors):
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
        """Fork all ranks. Returns True in a rank, False in the zygote."""
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
        become_rank(start, self.process, self._descriptors, self._preparation.processes)
        if not self._preparation.share or self._preload.problem is not None:
            exec_command(start.command)
        begin_device()
        self._clock.begin()
        begin_interpreter(self._clock.time_ns())
        fold_equal_tracebacks(os.environ, fold_errors)
        observe_process_groups(os.environ)
        hide_compile_trials()
        watch_host_tensors()
        share_compiled_graphs(os.environ)
        share_triton_kernels(os.environ)
        self._preload.shared.begin()
        self._rank_exit.begin(start.rank)

    def _turn(self, seconds: float | None) -> None:
        """Wait for commands and exits, and handle them."""
        if self._wait(seconds, with_commands=True):
            for command in self._commands.read():
                self._start_requested |= "start" in command
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
        """Wait; returns whether there are commands. Children may have exited."""
        descriptors = [self._wakeup, *([self._commands.descriptor] if with_commands else [])]
        ready = select.select(descriptors, [], [], seconds)[0]
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
        return self._commands.descriptor in ready

    def _reap(self) -> None:
        # WNOWAIT keeps a process a zombie until waitpid below, so that its id is not reused before its group is killed.
        while (self._rank_of or self._coordinator) and (
            ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ):
            process = ended.si_pid
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            rank = self._rank_of.pop(process, None)
            if rank is not None and (status != 0 or self._stopping):
                _signal_group(process, signal.SIGKILL)  # its data loaders and other child processes
            os.waitpid(process, 0)
            if process == self._coordinator:
                self._coordinator = 0
                self.report({"coordinator_exited": {"pid": process, "status": status}})
            elif rank is not None:
                private_bytes = self._rank_exit.rank_exited(rank)
                exited = {"rank": rank, "status": status}
                self._tell_coordinator({"exited": exited})
                self.report({"exited": {**exited, "private_bytes": private_bytes}})


def _print_exception() -> None:
    """Print the current exception, if stderr is still open."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()


def _signal_group(process: int, number: int) -> None:
    try:
        os.killpg(process, number)
    except ProcessLookupError:  # it has not made its process group yet
        os.kill(process, number)


def _shortened(reasons: dict[str, str]) -> dict[str, str]:
    """The reasons that are not consequences of others, as many as fit into one report."""
    causes: dict[str, str] = {}
    for name, reason in reasons.items():
        if not reason.startswith("imports ") and len(json.dumps(causes)) + len(name) < _LONGEST_REPORT:
            causes[name] = reason
    return causes
