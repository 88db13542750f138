"""Runs a job: makes attempts until one succeeds, the restarts are used up, or a signal stops the launcher.

In: a `LaunchOptions`, a GPU, the fake libraries, the settings of the run and a folder for it. Out: the launcher's exit
code, its lines on the terminal, and summary.json.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import shutil
import string
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from maya.assumptions import Assumption, wall_clock
from maya.devices import Device
from maya.launcher.arguments import LaunchOptions, UsageError
from maya.launcher.attempt import Attempt, AttemptOutcome
from maya.launcher.conclusion import conclude_run
from maya.launcher.debugging import PATIENCE
from maya.launcher.failure import failure_block, failures_of, pass_on_error_file, root_cause
from maya.launcher.folded_lines import FoldedLines
from maya.launcher.hang import show
from maya.launcher.logs import (
    Followed,
    Follower,
    WorkerFiles,
    line_prefix,
    make_log_folder,
    make_worker_files,
)
from maya.launcher.progress import Progress
from maya.launcher.recorded_settings import write_settings
from maya.launcher.signals import Signals
from maya.launcher.summary_file import FinishedRun
from maya.launcher.worker_environment import RendezvousAddress, free_port, worker_variables
from maya.launcher.zygote_process import ZygoteProcess
from maya.replay.run_settings import RunSettings
from maya.util.ranks import ranges, ranks_text
from rank_runtime.build import Build
from rank_runtime.environment import kept_bytes, object_bytes, rank_environment
from rank_runtime.zygote.equal_tracebacks import alike_tracebacks
from rank_runtime.zygote.protocol import Preparation, RankStart, Start

if TYPE_CHECKING:
    from maya.launcher.machines import JobMachines
    from maya.nodes.zygotes import Zygotes

SUCCESS, FAILED = 0, 1
_COORDINATOR = "coordinator.process:run_with_values"  # named, not imported: only the zygote's child loads it
_NO_PROGRAM = (sys.executable, "-c", "")  # the command of a zygote whose ranks do not share its interpreter


class Job:
    """All attempts at one job."""

    def __init__(
        self,
        launch: LaunchOptions,
        device: Device,
        build: Build,
        settings: RunSettings,
        run_folder: Path,
        say: Callable[[str], None],
        machines: JobMachines | None = None,
    ) -> None:
        """`machines`: where the ranks run; None: here."""
        self._launch = launch
        self._machines = machines
        self._device = device
        self._build = build
        self._run_folder = run_folder
        self._say = say
        self._inherited = dict(os.environ)
        self._log_folder = run_folder  # until a job begins
        self._settings = settings

    def run(self) -> int:
        self._check_program()
        write_settings(self._settings, self._run_folder)
        self._print_assumptions()
        self._check_limits()
        self._log_folder = make_log_folder(self._launch, self._run_folder)
        began = time.monotonic()
        exit_code, attempt = None, -1
        with Signals(self._launch.signals) as signals:
            while exit_code is None:
                attempt += 1
                outcome = self._attempt(attempt, signals)
                exit_code = self._verdict(outcome, attempt)
                if exit_code is None:
                    self._say(f"restarting the workers: {attempt + 1} of {self._launch.max_restarts} restarts")
        self._summarise(outcome, exit_code, attempt, time.monotonic() - began)
        self._show_hang(outcome)
        return exit_code

    def _show_hang(self, outcome: AttemptOutcome) -> None:
        if outcome.report_entry is not None:
            show(outcome.report_entry, self._say)

    def survey(self) -> tuple[AttemptOutcome, Path]:
        """One attempt without summary or prediction; the outcome, and the folder of its logs."""
        self._check_program()
        write_settings(self._settings, self._run_folder)
        self._check_limits()
        self._log_folder = make_log_folder(self._launch, self._run_folder)
        with Signals(self._launch.signals) as signals:
            outcome = self._attempt(0, signals)
        self._show_hang(outcome)
        return outcome, self._log_folder

    def _print_assumptions(self) -> None:
        launch, settings = self._launch, self._settings
        if launch.cluster_file is None and launch.world_size > 1 and (launch.timing.timeline or self._is_virtual()):
            self._say(f"no --cluster: the network is that of {settings.cluster} ({settings.load_cluster().name})")
        for each in self._clock_assumption():
            self._say(each.text())
        if settings.network == "flow" and self._is_virtual():
            self._say(
                "--network flow applies to the timeline; the script's own clocks assume that collectives do not overlap"
            )

    def _clock_assumption(self) -> list[Assumption]:
        if self._is_virtual():
            return []
        return [wall_clock("--clock wall" if self._launch.trace else "--no-trace")]

    def _is_virtual(self) -> bool:
        return self._launch.timing.clock == "virtual"

    def _check_program(self) -> None:
        program = self._launch.command[0]
        if shutil.which(program) is None:
            reason = errno.EACCES if Path(program).exists() else errno.ENOENT
            raise UsageError(f"cannot start {program}: {os.strerror(reason)}")

    def _check_limits(self) -> None:
        if self._machines is not None:
            self._machines.check(self._launch.processes)
            return
        if self._launch.world_size == 1 and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            return
        from maya.doctor import Verdict  # imported here, so that a job of one rank starts faster
        from maya.launcher.capacity import examine

        for check in examine(len(self._launch.processes), shared=self._launch.shares_modules):
            text = f"{check.subject}: {check.found}; {check.advice}"
            if check.verdict is Verdict.FAIL:
                raise UsageError(text)
            if check.verdict is Verdict.WARN:
                self._say(text)

    def _attempt(self, attempt: int, signals: Signals) -> AttemptOutcome:
        launch = self._launch
        ranks = launch.processes
        files = {rank: make_worker_files(launch, self._log_folder, rank, attempt) for rank in ranks}
        variables = self._common_environment(self._build, self._inherited)
        hosted = launch.world_size > 1 or self._machines is not None
        secret = secrets.token_hex(16) if hosted or self._is_virtual() else ""
        port = launch.master_port or 0
        rendezvous = RendezvousAddress(0 if hosted else port or free_port(), secret, hosted=hosted)
        if self._machines is not None:
            rendezvous = self._machines.rendezvous(rendezvous)

        def start(rendezvous: RendezvousAddress) -> Start:
            return Start(
                environment={**variables, **rendezvous.variables()},
                ranks=tuple(self._rank(rank, rendezvous, attempt, files[rank]) for rank in ranks),
            )

        preparation = self._preparation(secret, port if hosted else None, attempt)
        followed = [file for rank in ranks for file in self._followed(rank, files[rank])]
        folded = FoldedLines(self._failed_folder(attempt), sys.stderr)
        progress = Progress(len(ranks), sys.stderr)
        command = launch.command if preparation.share else _NO_PROGRAM
        zygotes: Zygotes
        if self._machines is None:
            zygotes = ZygoteProcess(command, variables, preparation)
        else:
            roots = (self._run_folder, self._log_folder)
            common = partial(self._machines.environment, self._inherited, self._common_environment)
            zygotes = self._machines.zygotes(command, common, variables, preparation, roots)
        with zygotes as zygote, Follower([*followed, folded]):
            outcome = Attempt(
                zygote, start, rendezvous, progress, self._say, launch.shutdown_seconds, launch.hangs
            ).run(signals)
        outcome.equal_output = [*_equal_tracebacks(self._traceback_file(attempt)), *folded.close()]
        return outcome

    def _common_environment(self, build: Build, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that all ranks of a machine share; the others depend on the rank, or on the rendezvous
        address."""
        own = worker_variables(self._launch, 0, RendezvousAddress(0), 0, Path(), inherited)
        environment = {name: value for name, value in inherited.items() if name not in own}
        if self._launch.hangs.debugs:
            environment = {**PATIENCE, **environment}
        if "OMP_NUM_THREADS" in own:  # libraries read it when they are loaded
            environment["OMP_NUM_THREADS"] = own["OMP_NUM_THREADS"]
        chosen = {
            **self._launch.variables,
            **self._launch.injection.variables(),
            "MAYA_TRACE": "",
            "MAYA_LATE_RANKS": "0",  # also below maya exec
            **RendezvousAddress(0).variables(),
            **self._clock_variables(),
            "MAYA_MEASURE_HOST": "1" if self._settings.host_time == "measured" else "0",
            "MAYA_STOP_AFTER": str(self._launch.stop_after or 0),
            "MAYA_RECORD_STEPS": str(self._launch.record_steps),
            "MAYA_PRESENT_RANKS": str(0 if self._launch.present is None else len(self._launch.present)),
            "MAYA_PRESENT_LIST": "" if self._launch.present is None else ranges(self._launch.present),
        }
        if not inherited.get("MAYA_KEPT_BYTES"):
            chosen["MAYA_KEPT_BYTES"] = str(kept_bytes(self._launch.ranks_with_contents))
        if not inherited.get("MAYA_OBJECT_BYTES"):
            chosen["MAYA_OBJECT_BYTES"] = str(object_bytes(self._launch.ranks_with_contents))
        return {
            **environment,
            **rank_environment(build, self._device.cuda_properties(), chosen, inherited),
        }

    def _clock_variables(self) -> dict[str, str]:
        if not self._is_virtual():
            return {"MAYA_CLOCK": "wall", "MAYA_CLOCK_COSTS": "", "MAYA_CLOCK_START": ""}
        return {
            "MAYA_CLOCK": "virtual",
            "MAYA_CLOCK_COSTS": self._settings.host.text(),
            "MAYA_CLOCK_START": str(time.time_ns()),
        }

    def _preparation(self, secret: str, port: int | None, attempt: int) -> Preparation:
        launch = self._launch
        share = self._launch.shares_modules
        imports = share and launch.world_size > 1
        return Preparation(
            world_size=launch.world_size,
            processes=len(launch.processes),
            share=share,
            torch=imports,
            script=launch.script if share and not launch.module else None,
            module=launch.script if share and launch.module else None,
            modules=launch.preload or (),
            rank_variables=tuple(worker_variables(launch, 0, RendezvousAddress(0), 0, Path(), self._inherited)),
            coordinator=_COORDINATOR if secret else "",
            coordinator_settings={
                "world_size": launch.world_size,
                "secret": secret,
                "store_port": port,
                "run_folder": str(self._run_folder) if self._is_virtual() else "",
                "hang_folder": str(self._run_folder),
                "hang_after": launch.hangs.after,
                "hang_freezes": launch.hangs.debugs,
                "present": "" if launch.present is None else ranges(launch.present),
                **({} if self._machines is None else self._machines.coordinator_settings()),
            },
        )

    def _rank(self, rank: int, rendezvous: RendezvousAddress, attempt: int, files: WorkerFiles) -> RankStart:
        variables = worker_variables(self._launch, rank, rendezvous, attempt, files.error_file, self._inherited)
        if self._launch.trace:
            variables["MAYA_TRACE"] = str(self._trace_file(rank, attempt))
        on_console = files.stderr.file is None and len(self._launch.processes) > 1
        variables["MAYA_TRACEBACKS"] = str(self._traceback_file(attempt)) if on_console else ""
        variables["MAYA_FAULTS"] = self._launch.injection.of_rank(rank, attempt)
        local_rank = str(rank % self._launch.ranks_per_node)
        return RankStart(
            rank=rank,
            command=tuple(
                string.Template(word).safe_substitute(local_rank=local_rank) for word in self._launch.command
            ),
            environment=variables,
            stdout=None if files.stdout.file is None else str(files.stdout.file),
            stderr=None if files.stderr.file is None else str(files.stderr.file),
        )

    def _followed(self, rank: int, files: WorkerFiles) -> list[Followed]:
        prefix = line_prefix(self._launch, rank, self._inherited)
        return [
            Followed(output.file, prefix, console)
            for output, console in ((files.stdout, sys.stdout), (files.stderr, sys.stderr))
            if output.follow and output.file is not None
        ]

    def _trace_file(self, rank: int, attempt: int) -> Path:
        return self._run_folder / (f"rank{rank}.trace" if attempt == 0 else f"rank{rank}-attempt{attempt}.trace")

    def _verdict(self, outcome: AttemptOutcome, attempt: int) -> int | None:
        """The launcher's exit code, or None if the workers are to be restarted."""
        for text in outcome.equal_output:
            self._say(text)
        if outcome.problem is not None:
            self._say(outcome.problem)
        if outcome.problem is not None or outcome.stopped_by is not None:
            return FAILED
        if not outcome.failed:
            return SUCCESS
        if outcome.hang is not None and not outcome.ranks_raise:  # no rank has failed
            return FAILED
        failures = failures_of(outcome.exits, self._launch.ranks_per_node, self._error_file(attempt))
        root = root_cause(failures, outcome.odd_rank)
        print(failure_block(self._launch.script, failures, root), file=sys.stderr, flush=True)
        try:
            pass_on_error_file(root, self._inherited.get("TORCHELASTIC_ERROR_FILE"))
        except OSError as error:
            self._say(f"cannot write the error file {error.filename}: {error.strerror}")
        last = attempt == self._launch.max_restarts or outcome.hang is not None
        return FAILED if last or not self._has_machines() else None

    def _has_machines(self) -> bool:
        """Whether the machines that are left have room for another attempt."""
        problem = None if self._machines is None else self._machines.place_again(self._launch.processes)
        if problem is not None:
            self._say(f"the workers are not restarted: {problem}")
        return problem is None

    def _failed_folder(self, attempt: int) -> Path:
        return self._log_folder / f"attempt_{attempt}" / "failed"

    def _traceback_file(self, attempt: int) -> Path:
        return self._failed_folder(attempt) / "tracebacks"

    def _error_file(self, attempt: int) -> Callable[[int], Path]:
        return lambda rank: self._log_folder / f"attempt_{attempt}" / str(rank) / "error.json"

    def _summarise(self, outcome: AttemptOutcome, exit_code: int, attempt: int, seconds: float) -> None:
        """Print and write the summary."""
        launch = self._launch
        files = {rank: self._trace_file(rank, attempt) for rank in launch.processes if launch.trace}
        run = FinishedRun(
            script=launch.script,
            nodes=launch.nodes,
            ranks_per_node=launch.ranks_per_node,
            cluster=launch.cluster,
            gpu=self._device.name,
            exit_code=exit_code,
            attempts=attempt + 1,
            seconds=seconds,
            exits=outcome.exits,
            traces={rank: file for rank, file in files.items() if file.exists()},
            stopped_by=None if outcome.stopped_by is None else outcome.stopped_by.name,
            problem=outcome.problem or _hang_problem(outcome, self._run_folder),
            unshared=outcome.unshared,
            imports=outcome.imports,
            private_bytes=outcome.private_bytes,
            coordinator=outcome.coordinator,
            pauses=outcome.pauses,
            injected=launch.injection.texts(),
            schedule_seed=launch.injection.seed,
            present=launch.present,
        )
        conclude_run(
            run,
            self._run_folder,
            self._say,
            trace=launch.trace,
            timeline=launch.timing.timeline,
            clock=self._clock_assumption(),
        )


def _equal_tracebacks(file: Path) -> list[str]:
    """Sentences about ranks with equal tracebacks. Each machine has a file of its own."""
    return [
        f"{ranks_text(group.ranks[1:])}: the same traceback as rank {group.ranks[0]}"
        f"{', but for numbers' if len(group.texts) > 1 else ''}"
        for each in sorted(file.parent.glob(f"{file.name}*"))
        for group in alike_tracebacks(str(each))
        if len(group.ranks) > 1
    ]


def _hang_problem(outcome: AttemptOutcome, folder: Path) -> str | None:
    if outcome.hang is None or outcome.report is None:
        return outcome.hang
    report = Path(outcome.report)
    return f"{outcome.hang}, see {report.name if report.parent == folder else report}"
