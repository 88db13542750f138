"""Searches the configurations of a script for the best one.

In: a script, arguments and options with choices in braces, constraints, an objective and limits. Out: a
`ConfigurationSearch`, and in its folder search.html, search.csv, search.db and the run of every trial. In a folder of
an earlier search with the same settings, the search goes on: finished trials do not run again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maya.api.figures import FigureTable
from maya.api.job_launch import option_words
from maya.api.run import Run, load
from maya.config_search.errors import SearchError
from maya.config_search.ray_trials import RayCluster
from maya.config_search.search_answer import ParameterEffect, SearchAnswer
from maya.config_search.search_folder import SearchFolder
from maya.config_search.search_page import SearchPage
from maya.config_search.search_progress import SearchProgress
from maya.config_search.search_runner import SearchRunner
from maya.config_search.search_settings import STEPS, SearchSettings
from maya.config_search.search_space import Configuration, SearchSpace, configuration_text
from maya.config_search.search_text import csv_of_search, lines_of_search
from maya.config_search.trial_choice import TrialChoice
from maya.config_search.trial_command import JobTemplate, TrialCommand, search_environment
from maya.config_search.trial_row import TrialRow
from maya.launcher.logs import new_run_folder
from maya.scaling.size_commands import refuse_options
from maya.util.dataframes import dataframe
from maya.util.expressions import Value
from maya.util.files import write_atomically

if TYPE_CHECKING:
    import pandas

_DEFAULTS: Mapping[str, object] = {"represent": "auto", "stop_after": STEPS, "trace_ranks": "none"}
_CHECKED_AT_ONCE = 3000  # configurations; of a larger space, each is checked when it is chosen


class ConfigurationSearch:
    """The trials of a search. `print` shows the best."""

    def __init__(
        self,
        folder: Path,
        settings: SearchSettings,
        job: JobTemplate,
        space: SearchSpace,
        rows: Iterable[TrialRow],
        environment: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.answer = SearchAnswer(list(rows), space, settings.objective, settings.memory)
        self._job = job
        self._space = space
        self._environment = environment

    def __repr__(self) -> str:
        return f"<ConfigurationSearch {self.folder}: {self.settings.script}, {self.answer.counts}>"

    def __str__(self) -> str:
        lines = lines_of_search(self.answer)
        if self.best is not None:
            lines += ["", f"Run it  {self.command()}", f"        {self.command(program='torchrun')}"]
        return "\n".join(lines)

    @property
    def trials(self) -> FigureTable[TrialRow]:
        """All trials, in the order in which they began."""
        return FigureTable(TrialRow, self.answer.rows, index="number")

    @property
    def best(self) -> TrialRow | None:
        """The best trial; None: no configuration fits."""
        return self.answer.best

    @property
    def ranked(self) -> tuple[TrialRow, ...]:
        """Trials with figures that fit, the best first."""
        return self.answer.ranked

    @property
    def pareto(self) -> tuple[TrialRow, ...]:
        """Trials that no other beats in the objective, memory and cost together."""
        return self.answer.pareto

    @property
    def effects(self) -> tuple[ParameterEffect, ...]:
        """What each parameter does, the one that decides most first."""
        return self.answer.effects

    def run(self, number: int | None = None) -> Run:
        """The run behind a trial's figures; by default the best trial's."""
        row = self._row(number)
        if row.figures is None:
            raise ValueError(f"trial {row.number} has no figures: {row.problem}")
        return load(self.folder / row.folder)

    def command(self, number: int | None = None, program: str = "maya-torchrun") -> str:
        """The command that runs a trial's configuration, without the search's limits; by default the best trial's.
        `program`: "maya-torchrun", or "torchrun" for the command of each node of a real cluster."""
        return self._command(self._row(number).configuration).text(program)

    @cached_property
    def _best_commands(self) -> dict[str, str]:
        return (
            {program: self.command(program=program) for program in ("maya-torchrun", "torchrun")} if self.best else {}
        )

    def to_dict(self) -> dict[str, Any]:
        """Settings, trials, the numbers of the best ones, and the effects of parameters."""
        return {
            "folder": str(self.folder),
            "script": self.settings.script,
            "objective": self.settings.objective,
            "best": None if self.best is None else self.best.number,
            "ranked": [row.number for row in self.ranked],
            "as_good": [row.number for row in self.answer.equals],
            "pareto": [row.number for row in self.pareto],
            "effects": [each.to_dict() for each in self.effects],
            "commands": self._best_commands,
            "trials": self.trials.to_dicts(),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each trial; parameters as columns parameter.tp, …"""
        tables = [row.flat() for row in self.answer.rows]
        names = dict.fromkeys(name for table in tables for name in table)
        return dataframe({name: [table.get(name) for table in tables] for name in names}, "number")

    def write(self) -> list[Path]:
        """Write the page and the CSV file into the folder; returns their paths."""
        script = Path(self.settings.script).name
        page = SearchPage(
            title=f"{script}: the best configuration",
            answer=self.answer,
            commands=self._best_commands,
            settings=_settings_table(self.settings, self._space),
        )
        texts = {"search.html": page.html(), "search.csv": csv_of_search(self.answer)}
        return [write_atomically(self.folder / name, text) for name, text in texts.items()]

    def _row(self, number: int | None) -> TrialRow:
        if number is None:
            if self.best is None:
                raise ValueError("no configuration has figures that fit")
            return self.best
        found = next((row for row in self.answer.rows if row.number == number), None)
        if found is None:
            raise ValueError(f"there is no finished trial {number}; there are {len(self.answer.rows)}")
        return found

    def _command(self, configuration: Configuration) -> TrialCommand:
        return self._job.command(self._space, configuration, self._environment)


class SearchInterrupted(KeyboardInterrupt):
    """An interrupt, with the search as far as it got."""

    def __init__(self, search: ConfigurationSearch) -> None:
        super().__init__()
        self.search = search


def search(
    script: str | PathLike[str],
    args: Sequence[object] = (),
    *,
    nproc: int | str,
    where: str | Sequence[str] = (),
    space: Mapping[str, Sequence[Value]] | None = None,
    when: Mapping[str, str] | None = None,
    variables: Mapping[str, object] | None = None,
    objective: str = "throughput",
    memory: float = 1.0,
    trials: int = 30,
    minutes: float | None = None,
    jobs: int | None = None,
    sampler: str = "auto",
    seed: int = 0,
    prune: bool = True,
    out: str | PathLike[str] | None = None,
    ray: str | None = None,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> ConfigurationSearch:
    """Find the best configuration: maya.search("train.py", ["--tp={1,2,4}"], nproc=64, where="heads % tp == 0").

    `args`: the script's own, with choices ({1,2,4}, {1..16*2}, {name:a,b}) and expressions ({nproc//tp}) in braces; the
    same in `options`, those of maya-torchrun, and in `variables`, environment variables of the jobs. `space`:
    parameters that texts only name. `when`: conditions under which parameters matter. `where`: constraints.
    `objective`: "throughput", "step-time" or "cost". `memory`: the share of a GPU's memory that may be used. `trials`,
    `minutes`: limits. `jobs`: runs at once. `prune`: end trials early that are certain to be far behind the best.
    `out`: the folder; with that of an earlier search, it goes on. `ray`: the address of a Ray cluster to run trials on,
    or "auto". `env`: further environment variables. Everything is checked before the first trial runs; a trial that
    fails is a row.
    """
    settings = SearchSettings(
        fspath(script),
        tuple(map(str, args)),
        {"nproc": nproc, **options},
        {name: str(value) for name, value in (variables or {}).items()},
        space or {},
        when or {},
        (where,) if isinstance(where, str) else tuple(where),
        objective,
        memory,
        trials,
        minutes,
        jobs,
        sampler,
        seed,
        prune,
    )
    return run_search(settings, out=out, ray=ray, quiet=quiet, env=env)


def run_search(
    settings: SearchSettings,
    *,
    out: str | PathLike[str] | None = None,
    ray: str | None = None,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
) -> ConfigurationSearch:
    """`search` with its settings as an object."""
    settings.check_limits()
    options = {name: value for name, value in settings.options.items() if value is not None}
    refuse_options(options)
    words = option_words(dict(sorted({**_DEFAULTS, **options}.items())), "search")
    environment = search_environment(env)
    job, space = settings.make(words)
    configurations, runs = _distinct(job, space, environment)
    choice = TrialChoice(
        space, configurations, runs=runs, sampler=settings.sampler, seed=settings.seed, trials=settings.trials
    )
    path = new_run_folder(f"{Path(settings.script).stem}-search.py") if out is None else Path(out).absolute()
    folder = SearchFolder(path, settings.document(words, environment))
    progress = SearchProgress(space.names, None if quiet else sys.stderr)
    cluster = None if ray is None else RayCluster(ray)
    runner = SearchRunner(settings, job, space, choice, folder, environment, progress, cluster)

    def found() -> ConfigurationSearch:
        progress.close()
        result = ConfigurationSearch(path, settings, job, space, runner.rows(), environment)
        result.write()
        return result

    how = (
        f"all of them, at most {runs} runs"
        if choice.sampler == "exhaustive"
        else f"by {choice.sampler}, at most {settings.trials} runs"
    )
    progress.say(f"{len(configurations):,} configurations, {how}; {path}")
    try:
        runner.run()
    except KeyboardInterrupt:
        raise SearchInterrupted(found()) from None
    else:
        return found()
    finally:
        runner.close()
        if cluster is not None:
            cluster.close()


def _distinct(job: JobTemplate, space: SearchSpace, environment: Mapping[str, str]) -> tuple[list[Configuration], int]:
    """The configurations with commands of their own, and how many runs they need if nothing is known: those that differ
    in hardware share one. Those of a small space are checked: an error in one that no trial could run is an error of
    the search only if all have it."""
    configurations = space.configurations()
    if len(configurations) > _CHECKED_AT_ONCE:
        job.command(space, configurations[0], environment)
        return configurations, len(configurations)
    found: dict[tuple[object, ...], Configuration] = {}
    software: set[tuple[object, ...]] = set()
    errors = []
    for configuration in configurations:
        try:
            command = job.command(space, configuration, environment)
        except SearchError as error:
            errors.append(error)
            found[tuple(configuration.items())] = configuration
        else:
            found.setdefault(command.key, configuration)
            software.add(command.software)
    if len(errors) == len(configurations):
        raise errors[0]
    return list(found.values()), len(software) + len(errors)


def _settings_table(settings: SearchSettings, space: SearchSpace) -> dict[str, str]:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.options.items())
    table = {
        "script": settings.script,
        "arguments": shlex.join(settings.args) or "none",
        "options of maya-torchrun": options,
        "parameters": configuration_text({each.name: ", ".join(map(str, each.values)) for each in space.parameters}),
        "constraints": "; ".join(settings.where) or "none",
        "objective": settings.objective,
    }
    return table | dict(settings.variables)
