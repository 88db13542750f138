"""Runs one script at several world sizes, and compares them.

In: a script, world sizes, and options of maya-torchrun. Out: a `ScaleStudy`, and in its folder scale.json, scale.csv,
scale.svg and scale.html, which are written again after every size, and the run of every size. A size that fails becomes
a row that says why; the others still run.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from maya.api.figures import FigureTable
from maya.api.job_launch import option_words, run_job
from maya.api.run import Run, load
from maya.launcher.logs import new_run_folder
from maya.scaling.efficiency import GIVEN, ScalingMode, find_mode, with_efficiency
from maya.scaling.finished_run import row_of_run
from maya.scaling.growth import Growth, efficiency_text, find_growth
from maya.scaling.scale_chart import draw_study
from maya.scaling.scale_page import StudyPage
from maya.scaling.scale_row import ScaleRow
from maya.scaling.size_commands import (
    REPRESENT,
    SizeCommand,
    StudyError,
    check_sizes,
    commands_of,
    parse_sizes,
    refuse_options,
)
from maya.scaling.study_folder import StudyFolder, StudySettings
from maya.scaling.study_progress import StudyProgress
from maya.scaling.study_text import csv_of, lines_of_study
from maya.util.dataframes import dataframe
from maya.util.files import write_atomically
from maya.util.text import share_text, time_text

if TYPE_CHECKING:
    import pandas


class ScaleStudy:
    """A script at several world sizes. `print` shows the table and what grows."""

    def __init__(self, folder: Path, settings: StudySettings, rows: Sequence[ScaleRow], scaling: str | None) -> None:
        self.folder = folder
        self.settings = settings
        self.mode: ScalingMode = find_mode(rows, scaling)
        self.rows: FigureTable[ScaleRow] = FigureTable(ScaleRow, with_efficiency(rows, self.mode), index="nproc")

    def __repr__(self) -> str:
        sizes = ", ".join(str(row.nproc) for row in self.rows)
        return f"<ScaleStudy {self.folder}: {self.settings.script}, {sizes} ranks, {self.mode.kind} scaling>"

    def __str__(self) -> str:
        return "\n".join(lines_of_study(self.rows, self.mode, self.statements))

    @cached_property
    def growth(self) -> tuple[Growth, ...]:
        """What grows from the first size to the last, the costliest first."""
        return tuple(find_growth(self.rows, self.mode))

    @property
    def statements(self) -> list[str]:
        """The efficiency, and what grows, as sentences."""
        return [text for text in (efficiency_text(self.rows), *(each.text for each in self.growth)) if text]

    @property
    def failed(self) -> tuple[int, ...]:
        """The sizes that failed."""
        return tuple(row.nproc for row in self.rows if not row.succeeded)

    def run(self, nproc: int) -> Run:
        """The run of a size."""
        for row in self.rows:
            if row.nproc == nproc:
                return load(self.folder / row.folder)
        raise ValueError(f"the study has no size {nproc}; it has {', '.join(str(row.nproc) for row in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Mode, growth and rows."""
        return {
            "folder": str(self.folder),
            "settings": self.settings.document(),
            "mode": self.mode.to_dict(),
            "growth": [each.to_dict() for each in self.growth],
            "rows": self.rows.to_dicts(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each size; times by class as columns class_ns.gemm, …"""
        tables = [row.flat() for row in self.rows]
        names = dict.fromkeys(name for table in tables for name in table)
        return dataframe({name: [table.get(name) for table in tables] for name in names}, "nproc")

    def write(self) -> list[Path]:
        """Write the CSV file, the chart and the page into the study's folder; returns their paths."""
        chart = draw_study(self.rows, self.mode, f"{Path(self.settings.script).name}: {self.mode.text}")
        page = StudyPage(
            title=f"{Path(self.settings.script).name}: how it scales",
            subtitle=_subtitle(self.settings, self.rows),
            mode=self.mode.text,
            statements=self.statements,
            chart=chart,
            rows=self.rows,
            settings=_settings_table(self.settings),
        )
        texts = {"scale.html": page.html(), "scale.csv": csv_of(self.rows), "scale.svg": f"{chart}\n"}
        return [write_atomically(self.folder / name, text) for name, text in texts.items()]


class StudyInterrupted(KeyboardInterrupt):
    """An interrupt, with the study as far as it got."""

    def __init__(self, study: ScaleStudy) -> None:
        super().__init__()
        self.study = study


def scale(
    script: str | PathLike[str],
    args: Sequence[object] = (),
    *,
    nproc: Sequence[int] | str,
    out: str | PathLike[str] | None = None,
    represent: str | Sequence[int] = REPRESENT,
    scaling: str | None = None,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> ScaleStudy:
    """Run a script at several world sizes: maya.scale("train.py", ["--batch", "{4096//nproc}"], nproc=[64, 256]).

    `args`: the script's own; {nproc} and arithmetic on it, such as {nproc//8}, is filled in for every size, as it is in
    the values of options. `out`: the study's folder, by default a new one under maya-runs; with the folder of an
    earlier study, sizes that are finished do not run again. `represent`: as --represent. `scaling`: "strong" or "weak",
    where tokens per step do not say it. `quiet`: no progress on stderr. `env`: environment variables of the jobs.
    `options`: other options of maya-torchrun, as in maya.launch. A size that fails is a row with a `problem`.
    """
    return run_study(
        script, args, nproc=nproc, out=out, represent=represent, scaling=scaling, quiet=quiet, env=env, options=options
    )


def run_study(
    script: str | PathLike[str],
    args: Sequence[object],
    *,
    nproc: Sequence[int] | str,
    out: str | PathLike[str] | None,
    represent: str | Sequence[int],
    scaling: str | None,
    options: Mapping[str, object],
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
) -> ScaleStudy:
    """`scale`, with the options of maya-torchrun as a mapping. Everything is checked before the first size runs."""
    sizes = parse_sizes(nproc) if isinstance(nproc, str) else check_sizes(nproc)
    if scaling not in (None, *GIVEN):
        raise StudyError(f"scaling: {scaling!r} is neither strong nor weak")
    refuse_options(options)
    words = option_words(dict(sorted({**options, "represent": represent}.items())), "scale")
    arguments = [str(arg) for arg in args]
    environment = {**os.environ, **(env or {})}
    commands = commands_of(sizes, fspath(script), arguments, words, environment)
    settings = StudySettings.of(fspath(script), arguments, words, environment)
    folder = new_run_folder(f"{Path(script).stem}-scale.py") if out is None else Path(out).absolute()
    runner = _Runner(StudyFolder(folder, settings), settings, commands, scaling, env, None if quiet else sys.stderr)
    try:
        return runner.run()
    except KeyboardInterrupt:
        raise StudyInterrupted(runner.study()) from None


class _Runner:
    """Runs the sizes of a study one after the other."""

    def __init__(
        self,
        folder: StudyFolder,
        settings: StudySettings,
        commands: Sequence[SizeCommand],
        scaling: str | None,
        env: Mapping[str, str] | None,
        console: TextIO | None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._commands = commands
        self._scaling = scaling
        self._env = env
        self._console = console
        self._rows: list[ScaleRow] = []

    def run(self) -> ScaleStudy:
        """All sizes; those that are finished are read."""
        with (
            self._folder.opened() as folder,
            StudyProgress([each.nproc for each in self._commands], self._console) as shown,
        ):
            todo = []
            for command in self._commands:
                row = folder.finished(command.nproc)
                if row is None:
                    todo.append(command)
                else:
                    self._rows.append(row)
                    shown.end(row.nproc, f"{_outcome(row)} (finished before)", row.seconds, ran=False)
            for command in todo:
                shown.begin(command.nproc)
                row = self._run_size(command, folder, shown)
                folder.add(row)
                self._rows.append(row)
                study = self.study()
                study.write()
                compared = next(each for each in study.rows if each.nproc == row.nproc)
                shown.end(row.nproc, _outcome(compared), row.seconds, ran=True)
        study = self.study()
        study.write()
        return study

    def study(self) -> ScaleStudy:
        """The study as far as it got."""
        rows = sorted(self._rows, key=lambda row: row.nproc)
        return ScaleStudy(self._folder.folder, self._settings, rows, self._scaling)

    def _run_size(self, command: SizeCommand, folder: StudyFolder, shown: StudyProgress) -> ScaleRow:
        run = folder.begin(command.nproc)
        log = run.with_name(f"{run.name}.log")
        began = time.monotonic()
        with log.open("w", encoding="utf-8", buffering=1) as file:

            def show(line: str) -> None:
                file.write(line)
                shown.output(line)

            exit_code = run_job(["--out", str(run), *command.words], show, env=self._env)
        seconds = time.monotonic() - began
        return row_of_run(command.nproc, run, log, exit_code, seconds)


def _outcome(row: ScaleRow) -> str:
    if not row.succeeded:
        return f"failed: {row.problem}"
    efficiency = f", efficiency {share_text(row.efficiency)}" if row.efficiency is not None else ""
    return f"{time_text(row.step_time_ns or 0)} a step{efficiency}"


def _subtitle(settings: StudySettings, rows: Sequence[ScaleRow]) -> str:
    sizes = ", ".join(f"{row.nproc:,}" for row in rows)
    return f"{sizes} ranks · Maya {settings.maya}"


def _settings_table(settings: StudySettings) -> dict[str, str]:
    return {
        "script": settings.script,
        "arguments": shlex.join(settings.args) or "none",
        "options of maya-torchrun": " ".join(settings.options),
        **settings.environment,
    }
