"""What to search: the job, its choices, constraints, the objective and limits; from a command line or a TOML file.

In: a TOML file (docs/search.md), or the options of `maya search`. Out: `SearchSettings`. Errors name the key and what
is expected.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from maya.config_search.errors import SearchError
from maya.config_search.objective import THROUGHPUT, check_objective
from maya.config_search.parameter import Parameter, make_parameter, parse_values
from maya.config_search.search_space import SearchSpace
from maya.config_search.trial_command import JobTemplate
from maya.util.catalogue import Catalogue
from maya.util.expressions import Value
from maya.util.suggestions import did_you_mean
from maya.version import __version__

STEPS = 3
TRIALS = 30
_CHANGING_VARIABLES = ("MAYA_", "NCCL_", "PET_")  # that change a prediction


@dataclass(frozen=True)
class SearchSettings:
    """A search. The figures of trials depend on the first part only; limits may change when a search goes on."""

    script: str
    args: tuple[str, ...] = ()  # with choices and expressions, as all texts below
    options: Mapping[str, object] = field(default_factory=dict)  # of maya-torchrun, by name with underscores
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment
    space: Mapping[str, Sequence[Value]] = field(default_factory=dict)  # parameters apart from those in words
    when: Mapping[str, str] = field(default_factory=dict)  # by parameter: the condition under which it matters
    where: tuple[str, ...] = ()

    objective: str = THROUGHPUT
    memory: float = 1.0  # of a GPU's; trials that need more are not among the best
    trials: int = TRIALS  # runs, besides replays and inferred trials
    minutes: float | None = None
    jobs: int | None = None  # runs at once; None: as many as there are processors
    sampler: str = "auto"
    seed: int = 0
    prune: bool = True  # give trials up that are certain to be far behind the best

    def check_limits(self) -> None:
        check_objective(self.objective)
        for name, least in (("trials", 1), ("jobs", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise SearchError(f"{name}: {value!r} is not a whole number from {least}")
        if not isinstance(self.prune, bool):
            raise SearchError(f"prune: {self.prune!r} is neither true nor false")
        for name, most in (("memory", 1.0), ("minutes", float("inf"))):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value <= most):
                what = "a share of the GPU's memory, above 0 and up to 1" if name == "memory" else "a number above 0"
                raise SearchError(f"{name}: {value!r} is not {what}")

    def make(self, option_words: Sequence[str]) -> tuple[JobTemplate, SearchSpace]:
        """The job and its space; `option_words`: `options` as words of the command line."""
        job = JobTemplate.of(self.script, self.args, option_words, self.variables)
        own = [make_parameter(name, values) for name, values in self.space.items()]
        parameters = [*own, *job.parameters]
        nproc = next((each for each in job.options if each.source.startswith("--nproc=")), None)
        fixed: dict[str, Value] = {}
        if not any(each.name == "nproc" for each in parameters):
            if nproc is None or nproc.names:
                raise SearchError("--nproc is missing: give the number of ranks, or choices such as {32,64}")
            fixed["nproc"] = _ranks(nproc.words({})[0].partition("=")[2])
        space = SearchSpace(_with_conditions(parameters, self.when), self.where, fixed)
        job.check(space)
        return job, space

    def document(self, option_words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
        """What has to be equal for a search to go on."""
        values = [word.partition("=")[2] for word in option_words]
        files = {name: _hash(Path(name)) for name in (self.script, *values) if name and Path(name).is_file()}
        chosen = {name: value for name, value in sorted(environment.items()) if name.startswith(_CHANGING_VARIABLES)}
        return {
            "script": self.script,
            "arguments": list(self.args),
            "options": list(option_words),
            "variables": dict(self.variables),
            "space": {name: list(values) for name, values in self.space.items()},
            "when": dict(self.when),
            "where": list(self.where),
            "objective": self.objective,
            "environment": chosen,
            "files": files,
            "maya": __version__,
        }


def _with_conditions(parameters: Sequence[Parameter], when: Mapping[str, str]) -> list[Parameter]:
    names = [each.name for each in parameters]
    for name in when:
        if name not in names:
            raise SearchError(
                f"condition of {name}: there is no such parameter{did_you_mean(name, names)}; there are "
                f"{', '.join(names) or 'none'}"
            )
    return [each.only_when(when[each.name]) if each.name in when else each for each in parameters]


def _ranks(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise SearchError(f"--nproc {text}: expected a number of ranks, or choices such as {{32,64}}")
    return int(text)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---- the file ----

_LIMITS = ("memory", "trials", "minutes", "jobs", "prune")
_KEYS = {
    "script": "the path of the script",
    "args": "the script's arguments: a list of words, or one text",
    "nproc": "the number of ranks",
    "options": "a table of options of maya-torchrun",
    "environment": "a table of environment variables",
    "space": "a table of parameters: lists of values, or a text such as 1..16*2",
    "when": "a table of conditions",
    "where": "a list of constraints",
    "objective": "throughput, step-time or cost",
    "limits": "a table with memory, trials, minutes, jobs or prune",
    "sampler": "auto, exhaustive, tpe or random",
    "seed": "a whole number",
}


def read_search_file(file: Path) -> SearchSettings:
    """The settings in a TOML file. A script's path is relative to the folder of the search, as on the command line."""
    table = Catalogue(file.parent, "search", SearchError).read(file)
    for key in table:
        if key not in _KEYS:
            raise SearchError(f'{file}: unknown key "{key}"{did_you_mean(key, _KEYS)}; there are {", ".join(_KEYS)}')
    try:
        options = {name.replace("-", "_"): value for name, value in _table(table, "options").items()}
        if "nproc" in table:
            options["nproc"] = table["nproc"]
        settings = SearchSettings(
            script=_typed(table, "script", str, ""),
            args=_args(table),
            options=options,
            variables={name: str(value) for name, value in _table(table, "environment").items()},
            space={name: _values(name, values) for name, values in _table(table, "space").items()},
            when={name: str(value) for name, value in _table(table, "when").items()},
            where=_texts(table, "where"),
            objective=_typed(table, "objective", str, THROUGHPUT),
            sampler=_typed(table, "sampler", str, "auto"),
            seed=_typed(table, "seed", int, 0),
        )
        limits = _table(table, "limits")
        for key in limits:
            if key not in _LIMITS:
                hint = did_you_mean(key, _LIMITS)
                raise SearchError(f'limits: unknown key "{key}"{hint}; there are {", ".join(_LIMITS)}')
        settings = replace(settings, **limits)
        settings.check_limits()
    except SearchError as error:
        raise SearchError(f"{file}: {error}") from error
    if not settings.script:
        raise SearchError(f'{file}: the key "script" is missing: {_KEYS["script"]}')
    return settings


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SearchError(f"{key} = {value!r}: expected {_KEYS[key]}")
    return value


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = _typed(table, key, dict, {})
    return value


def _args(table: Mapping[str, Any]) -> tuple[str, ...]:
    args = table.get("args", [])
    if isinstance(args, str):
        return tuple(shlex.split(args))
    if not isinstance(args, list):
        raise SearchError(f"args = {args!r}: expected {_KEYS['args']}")
    return tuple(map(str, args))


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise SearchError(f"{key} = {value!r}: expected {_KEYS[key]}")
    return tuple(texts)


def _values(name: str, values: Any) -> list[Value]:
    if isinstance(values, str):
        return parse_values(name, values)
    if not isinstance(values, list):
        raise SearchError(f"space.{name} = {values!r}: expected a list of values, or a text such as 1..16*2")
    return values


def given(settings: SearchSettings, **changes: Any) -> SearchSettings:
    """The settings with those of the command line in place of the file's."""
    known = {each.name for each in fields(SearchSettings)}
    return replace(settings, **{name: value for name, value in changes.items() if name in known and value is not None})
