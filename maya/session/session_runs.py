"""Makes runs of a session's jobs: a folder with run.json, traces by rank, a summary and a prediction.

In: reports of the coordinator about jobs that are over, and traces by process in the session's folder. Out: folders as
those of maya-torchrun, and lines for the terminal.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maya.assumptions import wall_clock
from maya.launcher.arguments import LaunchOptions, UsageError
from maya.launcher.conclusion import conclude_run
from maya.launcher.logs import new_run_folder
from maya.launcher.recorded_settings import write_settings
from maya.launcher.summary_file import FinishedRun
from maya.replay.run_settings import RunSettings
from maya.session.environment import TRACES
from maya.session.options import script_of
from maya.trace import TraceError, read
from maya.util.ranks import parse_ranks
from rank_runtime.trace_format import HEADER_FIELDS, layout, offset_after


@dataclass(frozen=True)
class EndedJob:
    """A job whose processes have ended."""

    ranks: int
    ranks_per_node: int
    processes: Mapping[int, int]  # rank -> process id
    command: Sequence[str] = ()  # of a process, and of its parent
    seconds: float = 0.0
    steps: int = 0  # of optimizers
    statistics: Mapping[str, Any] = field(default_factory=dict)  # of the coordinator

    @staticmethod
    def of_report(report: Mapping[str, Any]) -> EndedJob:
        """From the coordinator's report "over"."""
        processes = {int(rank): int(pid) for rank, pid in report["pids"].items()}
        return EndedJob(
            report["ranks"],
            report["ranks_per_node"],
            processes,
            report["command"],
            report["seconds"],
            report["steps"],
            report["statistics"],
        )


class SessionRuns:
    """The runs of a session."""

    def __init__(
        self,
        launch: LaunchOptions,
        settings: RunSettings,
        gpu: str,
        folder: Path,
        say: Callable[[str], None],
        *,
        uses_own_folder: bool,
    ) -> None:
        """`folder`: the session's, with the traces of processes. `uses_own_folder`: it becomes that of the first
        run."""
        self._launch = launch
        self._settings = settings
        self._gpu = gpu
        self._folder = folder
        self._say = say
        self._folder_is_free = uses_own_folder

    def conclude_all(self, jobs: Sequence[EndedJob], name: str, exit_code: int, seconds: float) -> None:
        """At the end of a command: predict the jobs that trained, or else the largest one. The others are named."""
        found = [*jobs, *self._without_connection(jobs)]
        chosen = _worth_predicting(found)
        for job in chosen:
            self.conclude(job, script_of(job.command) or name, exit_code, seconds)
        others = sum(len(job.processes) for job in found if job not in chosen)
        if others:
            what = "1 other process" if others == 1 else f"{others} other processes"
            self._say(f"not predicted: {what} that used a GPU, without a step of an optimizer")

    def conclude(self, job: EndedJob, name: str, exit_code: int, seconds: float) -> None:
        """Make a run of a job, print its summary and prediction."""
        folder = self._folder
        if not self._folder_is_free:
            folder = new_run_folder(name)
        self._folder_is_free = False
        traces = self._move_traces(job, folder)
        settings = replace(
            self._settings,
            world_size=job.ranks,
            ranks_per_node=job.ranks_per_node,
            script=name,
            options=self._options_for(job.ranks),
        )
        try:
            write_settings(settings, folder)
        except UsageError as error:
            self._say(str(error))
            return
        if folder != self._folder and (self._folder / "inductor").is_dir():
            shutil.copytree(self._folder / "inductor", folder / "inductor", dirs_exist_ok=True)
        run = FinishedRun(
            script=name,
            nodes=-(-job.ranks // job.ranks_per_node),
            ranks_per_node=job.ranks_per_node,
            cluster=self._launch.cluster,
            gpu=self._gpu,
            exit_code=exit_code,
            attempts=1,
            seconds=seconds,
            exits=(),
            traces=traces,
            stopped_by=None,
            problem=None,
            unshared={},
            coordinator=job.statistics,
        )
        virtual = self._settings.clock == "virtual"
        conclude_run(
            run,
            folder,
            self._say,
            trace=True,
            timeline=self._launch.timing.timeline,
            clock=() if virtual else [wall_clock("--clock wall")],
        )

    def _options_for(self, ranks: int) -> dict[str, Any]:
        """The options for a job of this size: --trace-ranks may name ranks that it does not have."""
        options = dict(self._settings.options)
        text = str(options.get("trace_ranks", "all"))
        if text in ("all", "none"):
            return options
        wanted = parse_ranks(text, repeated=True)
        own = [rank for rank in wanted if rank < ranks]
        if len(own) < len(wanted):
            size = "1 rank" if ranks == 1 else f"{ranks} ranks"
            self._say(f"--trace-ranks {text}: this job has {size}, so the others have no trace file")
            options["trace_ranks"] = ",".join(map(str, own)) or "none"
        return options

    def _move_traces(self, job: EndedJob, folder: Path) -> dict[int, Path]:
        """Give the traces of processes, and of their forked children, the names of ranks."""
        traces = {}
        for rank, process in job.processes.items():
            stem = TRACES.format(process).removesuffix(".trace")
            for found in sorted(self._folder.glob(f"{stem}*.trace")):
                child = found.name.removesuffix(".trace").removeprefix(stem)
                if child and not child.startswith("."):
                    continue  # of a process whose number begins alike
                moved = folder / f"rank{rank}{child}.trace"
                shutil.move(found, moved)
                _set_rank(moved, rank)
                if not child:
                    traces[rank] = moved
        return traces

    def _without_connection(self, jobs: Iterable[EndedJob]) -> list[EndedJob]:
        """Processes that used a GPU, but never needed the coordinator, with --clock wall."""
        known = {process for job in jobs for process in job.processes.values()}
        found = []
        for path in sorted(self._folder.glob(TRACES.format("*"))):
            match = re.fullmatch(TRACES.format(r"(\d+)"), path.name)
            if match is not None and int(match[1]) not in known:
                found.append(EndedJob(1, 1, {0: int(match[1])}, steps=_steps_in(path)))
        return found


def _worth_predicting(jobs: Sequence[EndedJob]) -> list[EndedJob]:
    """The jobs with steps, or else the largest one."""
    trained = [job for job in jobs if job.steps or len(jobs) == 1]
    return trained or [max(jobs, key=lambda job: job.ranks)] if jobs else []


def _steps_in(trace: Path) -> int:
    """Whether an optimizer made a step: 1 or 0."""
    try:
        return int(any('"optimizer":' in text for text in read(trace).strings))
    except (TraceError, OSError):
        return 0


def _set_rank(trace: Path, rank: int) -> None:
    """Write the rank into the header of a trace, which the process began before it knew its rank."""
    header, names = layout(HEADER_FIELDS), [name for name, _ in HEADER_FIELDS]
    with trace.open("r+b") as file:
        data = file.read(header.size)
        if len(data) < header.size:
            return  # the reader says what is wrong
        values = list(header.unpack(data))
        values[names.index("rank")] = rank
        values[names.index("checksum")] = zlib.crc32(header.pack(*values)[offset_after(HEADER_FIELDS, "checksum") :])
        file.seek(0)
        file.write(header.pack(*values))
