"""The folder of a run of maya-torchrun.

In: a folder with run.json, the ranks' traces, and, once the job has ended, summary.json. Out: `Run`: how the job ended,
its settings, its prediction, and predictions on other settings. Nothing in the folder changes but the cache of trace
digests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maya.api.figures import (
    BreakdownFigures,
    CollectiveFigures,
    FigureTable,
    JobSettings,
    KernelFigures,
    MemoryFigures,
    PlainFigures,
    RankFigures,
    SpeedFigures,
    StepFigures,
)
from maya.api.prediction_figures import job_settings
from maya.hangs import report_text
from maya.replay.recording import Recording, read_recording
from maya.replay.run_settings import FILE, RunSettings
from maya.replay.simulate import simulate
from maya.results import conclude
from maya.trace import RecordKind, read
from maya.util.files import damage_reported

if TYPE_CHECKING:
    from maya.api.run_comparison import RunComparison
    from maya.api.run_prediction import RunPrediction
    from maya.trace import Trace
    from maya.whatif.changes import ChangedReplay

SUMMARY, HANG = "summary.json", "hang.json"
NameOrPath = str | PathLike[str]


def load(folder: str | PathLike[str]) -> Run:
    """The run in a folder. A ValueError says what is wrong with a folder that has none."""
    path = Path(folder)
    if not path.exists():
        raise ValueError(f"{path}: there is no such folder; maya-torchrun says at its end where it recorded a run")
    if not path.is_dir():
        raise ValueError(f"{path} is a file; give the folder of a run, which has {FILE} and rank0.trace in it")
    if not (path / FILE).is_file():
        recorded = next(path.glob("rank*.trace"), None) is not None
        raise ValueError(
            f"{path} has traces but no {FILE}, so an older Maya recorded it; run the job again"
            if recorded
            else f"{path} is not the folder of a run: it has no {FILE}; maya-torchrun says where it recorded a run"
        )
    return Run(path, RunSettings.load(path))


@dataclass(frozen=True)
class HangReport(PlainFigures):
    """Why ranks could never go on; docs/hangs.md."""

    kind: str  # "deadlock", "partial deadlock" or "mismatch"
    stuck_ranks: tuple[int, ...]
    hints: tuple[str, ...]
    text: str  # as maya-torchrun printed it
    document: Mapping[str, Any]  # all of hang.json


class Run:
    """A run of maya-torchrun. `maya.load` and `maya.launch` make one.

    `prediction` replays the recorded traces on the settings of the job; `predict` does so on other settings. `steps`,
    `breakdown` and the like are those of `prediction`.
    """

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.folder = folder
        self._settings = settings
        self._recording: Recording | None = None

    def __repr__(self) -> str:
        from maya.launcher.terminal_summary import relative

        settings = self._settings
        ended = "not ended" if self.exit_code is None else f"exit code {self.exit_code}"
        ranks = f"{settings.world_size} rank{'s' if settings.world_size != 1 else ''}"
        return f"<Run {relative(self.folder)}: {settings.script}, {ranks} on {settings.gpu}, {ended}>"

    # ---- how the job went ----

    @cached_property
    def settings(self) -> JobSettings:
        """The settings that the job ran with."""
        return job_settings(self._settings)

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """summary.json (docs/results.md); None: the job has not ended, or could not write it."""
        return _read_json(self.folder / SUMMARY)

    @property
    def exit_code(self) -> int | None:
        """0: success; None: not known, as `summary` is missing."""
        code = (self.summary or {}).get("exit_code")
        return code if isinstance(code, int) else None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Statements of summary.json to read before the numbers, such as placeholder values that the script read."""
        with damage_reported(self.folder / SUMMARY):
            return tuple(str(each["text"]) for each in (self.summary or {}).get("assumptions", ()))

    @cached_property
    def hang(self) -> HangReport | None:
        """The report of hang.json; None: the job did not hang."""
        report = _read_json(self.folder / HANG)
        if report is None:
            return None
        with damage_reported(self.folder / HANG):
            return HangReport(
                kind=str(report["kind"]),
                stuck_ranks=tuple(map(int, report["ranks"]["stuck"])),
                hints=tuple(map(str, report["hints"])),
                text="\n".join(report_text.lines(report)),
                document=report,
            )

    @property
    def logs(self) -> list[Path]:
        """Output of ranks that was redirected to files (redirects=3 or tee=3), and their error files."""
        return sorted(path for path in (self.folder / "logs").rglob("*") if path.is_file())

    @property
    def traces(self) -> dict[int, Path]:
        """The trace file of every rank that has one."""
        names = {path: re.fullmatch(r"rank(\d+)\.trace", path.name) for path in self.folder.glob("rank*.trace")}
        return dict(sorted((int(match[1]), path) for path, match in names.items() if match))

    def trace(self, rank: int = 0) -> Trace:
        """The recorded trace of a rank."""
        traces = self.traces
        if rank not in traces:
            raise ValueError(f"{self.folder} has no trace of rank {rank}; it has {len(traces)} traces: {list(traces)}")
        return read(traces[rank])

    # ---- what it takes on a cluster ----

    @cached_property
    def prediction(self) -> RunPrediction:
        """The prediction on the settings of the job, replayed now; `summary` has the one made at the end of the job."""
        return self._predict(None)

    @property
    def step_time_ns(self) -> int:
        """The median of the measured steps."""
        return self.prediction.step_time_ns

    @property
    def steps(self) -> StepFigures:
        """The training steps."""
        return self.prediction.steps

    @property
    def breakdown(self) -> BreakdownFigures:
        """Where the time of a step goes."""
        return self.prediction.breakdown

    @property
    def ranks(self) -> FigureTable[RankFigures]:
        """Step time, communication and memory of every rank."""
        return self.prediction.ranks

    @property
    def memory(self) -> MemoryFigures:
        """Peak memory of every rank."""
        return self.prediction.memory

    @property
    def speed(self) -> SpeedFigures:
        """Tokens a second, MFU, cost."""
        return self.prediction.speed

    @property
    def collectives(self) -> FigureTable[CollectiveFigures]:
        """The collectives of the typical step."""
        return self.prediction.collectives

    @property
    def kernels(self) -> FigureTable[KernelFigures]:
        """The kernels of the typical step."""
        return self.prediction.kernels

    def predict(
        self,
        *,
        gpu: NameOrPath | None = None,
        cluster: NameOrPath | None = None,
        set: Mapping[str, object] | Sequence[str] = (),
        slow_ranks: Mapping[int | str, float] | Sequence[str] = (),
        network: str | None = None,
        host: NameOrPath | None = None,
        host_time: str | None = None,
        algo: str | None = None,
        proto: str | None = None,
        faults: Sequence[str] = (),
    ) -> RunPrediction:
        """The prediction on other settings; what is left out stays as recorded. The script does not run again.

        `gpu`, `cluster`, `host`: a name in the catalogue or a TOML file; a cluster brings its GPU. `set`: single keys
        of their files, {"node.nic_rate": "200Gbps", "host.op": "5us"}. `slow_ranks`: factors of kernel times,
        {17: 1.3, "0-7": 1.1}. `network`: "analytic", or "flow" for collectives that share links. `host_time`: "model",
        "zero" or "measured". `algo`, `proto`: as NCCL_ALGO and NCCL_PROTO. `faults`: slow or lost links, as
        "node0/nic3" or "leaf0:spine1=25%".
        """
        from maya.whatif.changes import WhatIfOptions, apply_options

        options = WhatIfOptions(
            gpu=_text(gpu),
            cluster=_text(cluster),
            sets=_pairs(set, "="),
            slow_ranks=_pairs(slow_ranks, ":"),
            algo=algo,
            proto=proto,
            network=network,
            host=_text(host),
            host_time=host_time,
            faults=_texts(faults),
        )
        return self._predict(apply_options(self._settings, options))

    def compare(self, other: Run | RunPrediction) -> RunComparison:
        """The prediction of this run before, that of another run, or of other settings, after."""
        return self.prediction.compare(other.prediction if isinstance(other, Run) else other)

    def write_report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write an HTML page about the prediction; by default report.html in the run's folder. Returns its path."""
        return self.prediction.write_report(path)

    def _predict(self, changed: ChangedReplay | None) -> RunPrediction:
        from maya.api.run_prediction import RunPrediction

        settings = self._settings if changed is None else changed.settings
        slow_ranks = {} if changed is None else changed.slow_ranks
        timeline = simulate(self._read(settings), settings, slow_ranks=slow_ranks)
        return RunPrediction(self.folder, conclude(timeline), changed)

    def _read(self, settings: RunSettings) -> Recording:
        """The traces, read once. Settings on which cudaMalloc costs time need them in more detail."""
        costs = (self._settings.host.calls, settings.host.calls)
        allocations = any(calls.get(kind) for calls in costs for kind in (RecordKind.MALLOC, RecordKind.FREE))
        if self._recording is None or self._recording.allocations < allocations:
            inductor = self._settings.inductor_folder(self.folder)
            self._recording = read_recording(self.folder, inductor, allocations=allocations)
        return self._recording


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it is no JSON object")
    return content


def _text(value: NameOrPath | None) -> str | None:
    return None if value is None else fspath(value)


def _texts(values: Sequence[str]) -> Sequence[str]:
    return (values,) if isinstance(values, str) else tuple(values)


def _pairs(values: Mapping[Any, object] | Sequence[str], separator: str) -> Sequence[str]:
    """A mapping as the texts that the command takes, such as key=value."""
    if isinstance(values, Mapping):
        return tuple(f"{key}{separator}{_value(value)}" for key, value in values.items())
    return _texts(values)


def _value(value: object) -> str:
    """A value as a TOML file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
