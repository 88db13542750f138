"""A session: runs a command below which every process has virtual GPUs, and predicts the jobs that it runs.

In: options and a command. Out: the command's exit code; for each job a run as of maya-torchrun.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from maya.devices import DeviceError, load_device
from maya.launcher import hang
from maya.launcher.arguments import LaunchOptions, UsageError
from maya.launcher.logs import make_run_folder, new_run_folder
from maya.launcher.outer_session import take_own_jobs
from maya.launcher.recorded_settings import make_settings, write_settings
from maya.session.command_process import end_like, run_command
from maya.session.coordinator_process import CoordinatorProcess
from maya.session.environment import TRACES, search_path, session_environment
from maya.session.options import find_program, name_of
from maya.session.session_runs import EndedJob, SessionRuns
from rank_runtime.build import BuildError, ensure_built
from rank_runtime.variables import VariableError

USAGE = 2


def run_session(launch: LaunchOptions, command: Sequence[str], *, is_shell: bool) -> int:
    """Run the command; returns its exit code, or 2 if it could not be started."""
    try:
        program = find_program(command[0], search_path(os.environ))
        session = _Session(launch, command, is_shell=is_shell)
    except (UsageError, DeviceError, BuildError, VariableError) as error:
        _say(str(error))
        return USAGE
    return end_like(session.run([program, *command[1:]] if is_shell else command))


class _Session:
    """One command and the jobs that it runs."""

    def __init__(self, launch: LaunchOptions, command: Sequence[str], *, is_shell: bool) -> None:
        device = load_device(launch.gpu, launch.timing.of_gpu())
        build = ensure_built(_say)
        if build.observer is None:
            _say(f"no op observer, so ops are neither named nor computed: {build.observer_problem}")
        settings = make_settings(launch, device, build, os.environ)
        cluster = settings.load_cluster()
        gpus_per_node = int(launch.variables.get("MAYA_GPUS") or os.environ.get("MAYA_GPUS") or cluster.gpus_per_node)
        self._name = "shell" if is_shell else name_of(command)
        self._is_shell = is_shell
        self._folder = make_run_folder(launch) if launch.out is not None else new_run_folder(self._name)
        write_settings(settings, self._folder)
        self._coordinator = CoordinatorProcess(
            self._folder,
            gpus_per_node,
            launch.hangs.after,
            virtual_clock=settings.clock == "virtual",
            reports_at_once=is_shell,
        )
        self.environment = session_environment(
            launch, device, build, settings, self._folder, self._coordinator.address, gpus_per_node, os.environ
        )
        self._runs = SessionRuns(launch, settings, device.name, self._folder, _say, uses_own_folder=not is_shell)
        if is_shell:
            _say(f"a shell with {gpus_per_node} virtual {device.name}; exit ends it")
        self._assumed = None if launch.cluster_file else f"{settings.cluster} ({cluster.name})"
        self._ended: list[EndedJob] = []
        self._hangs = launch.hangs
        self._stuck: list[tuple[int, float]] = []  # descriptors of ranks that are being ended, and when to kill them
        self._has_connections = False
        self._alive: Sequence[int] = ()
        self._began = time.monotonic()

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end; returns its status as `subprocess` has it."""
        try:
            try:
                status = run_command(command, self.environment, self._turn)
            except OSError as error:
                _say(f"cannot start {command[0]}: {error.strerror}")
                return USAGE
            self._finish(0 if self._is_shell else status)
            return status
        finally:
            self._coordinator.close()
            self._remove_if_unused()

    def _turn(self) -> None:
        for report in self._coordinator.reports():
            self._take(report)
        self._kill_stuck()
        if self._is_shell:
            self._conclude_ended()

    def _take(self, report: Mapping[str, Any]) -> None:
        if "coordinator_failed" in report:
            _say(f"the coordinator has failed: {report['coordinator_failed']}")
        if "connected" in report:
            self._has_connections = True
        if "hang" in report:
            hang.show(report["hang"], _say)
            self._end_ranks(report["pids"])
        if "no_progress" in report:
            hang.warn(report["no_progress"], _say, stop="Ctrl-C stops the command")
            if self._hangs.suspects:
                self._end_ranks(report["pids"])
        if "resumed" in report:
            _say(f"the ranks go on, after {report['resumed']['seconds']:.0f} s without any activity")
        if "over" in report:
            self._ended.append(EndedJob.of_report(report["over"]))
        if "alive" in report:
            self._alive = report["alive"]

    def _end_ranks(self, pids: Sequence[int]) -> None:
        """End the ranks of a job that can never go on; the command sees them end, and decides what follows."""
        ending = hang.ending(self._hangs, raises=False)
        if ending is None:
            _say("the command goes on, until torch's watchdogs or Ctrl-C end it")
            return
        _say(f"the {len(pids)} ranks of this job are ended (--on-hang wait leaves them)")
        for pid in pids:
            with suppress(OSError):
                process = os.pidfd_open(pid)
                self._stuck.append((process, time.monotonic() + ending.shutdown_seconds))
                signal.pidfd_send_signal(process, ending.signal)

    def _kill_stuck(self) -> None:
        for process, deadline in list(self._stuck):
            if time.monotonic() < deadline:
                continue
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            self._stuck.remove((process, deadline))

    def _conclude_ended(self) -> None:
        """In a shell, jobs are predicted as they end; the exit codes of their commands are not known."""
        ended, self._ended = self._ended, []
        for job in ended:
            self._runs.conclude(job, name_of(job.command), 0, job.seconds)

    def _finish(self, exit_code: int) -> None:
        seconds = time.monotonic() - self._began
        for process, _ in self._stuck:
            os.close(process)
        has_own_jobs = take_own_jobs(self._folder)  # of maya-torchrun, which has predicted them
        if self._has_connections or any(self._folder.glob(TRACES.format("*"))):
            for report in self._coordinator.finish():
                self._take(report)
        if self._alive:
            pids = ", ".join(map(str, self._alive))
            _say(f"still running after the command, without Maya's coordinator from now on: process {pids}")
        if self._is_shell:
            self._conclude_ended()
        elif self._has_connections or any(self._folder.glob(TRACES.format("*"))):
            if self._assumed is not None and any(job.ranks > 1 for job in self._ended):
                _say(f"no --cluster: the network is that of {self._assumed}")
            self._runs.conclude_all(self._ended, self._name, exit_code, seconds)
        elif not has_own_jobs:
            _say("nothing recorded: no process used a GPU")

    def _remove_if_unused(self) -> None:
        """Remove the folder if it has neither a run, nor a trace, nor the report of a hang."""
        kept = ("summary.json", "**/*.trace", "**/hang.json", "**/no_progress.json")
        if not any(any(self._folder.glob(pattern)) for pattern in kept):
            shutil.rmtree(self._folder, ignore_errors=True)


def _say(line: str) -> None:
    print(f"maya: {line}", file=sys.stderr, flush=True)
