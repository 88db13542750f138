"""The frameworks and programs that scripts/frameworks runs: frameworks_programs/catalogue.toml as objects.

In: the catalogue. Out: `Framework` and `Program`, and for a program the command that starts it. Words of a command may
contain {programs} (the folder of the catalogue), {packages} (where the framework is installed), {data} (what its
preparation has made) and {work} (an empty folder, in which the program runs).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:
    import tomli as tomllib  # type: ignore[import-not-found,no-redef]

PROGRAMS = Path(__file__).resolve().parent / "frameworks_programs"
CATALOGUE = PROGRAMS / "catalogue.toml"


@dataclass(frozen=True)
class Framework:
    """An environment of its own over .venv's torch. The first package names it; without any, it is .venv itself."""

    name: str
    packages: tuple[str, ...]
    constraints: tuple[str, ...] = ()  # versions of what they require
    without: tuple[str, ...] = ()  # requirements that are left out
    prepare: str = ""  # command that makes {data}, by plain Python
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name and version, as the table shows them."""
        return re.sub(r"(\[.*\])?==", " ", self.packages[0]) if self.packages else self.name


@dataclass(frozen=True)
class Program:
    framework: Framework
    name: str
    what: str
    command: str
    ranks: int
    launcher: bool = False  # `command` starts the ranks itself, below maya exec
    options: tuple[str, ...] = ()  # of maya-torchrun or maya exec
    reason: str = ""  # why it fails, if it is known to
    minutes: int = 15

    @property
    def key(self) -> str:
        return f"{self.framework.name}.{self.name}"

    def scripts(self) -> list[Path]:
        """Scripts of ours that the command names. Other programs are the framework's own."""
        return _named(self.command)

    def files(self) -> list[Path]:
        """Files of ours that the result depends on."""
        return _named(self.command) + _named(self.framework.prepare)

    def arguments(self, folders: Mapping[str, Path]) -> list[str]:
        """What follows `maya-torchrun --out RUN` or `maya exec --out RUN`."""
        words = [word.format(**folders, ranks=self.ranks) for word in shlex.split(self.command)]
        if self.launcher:
            return [*self.options, "--", *words]
        return ["--nproc", str(self.ranks), *self.options, *words]


def _named(command: str) -> list[Path]:
    words = [word for word in shlex.split(command) if word.startswith("{programs}/")]
    return [(PROGRAMS / word.removeprefix("{programs}/")).resolve() for word in words]


def read_catalogue(file: Path = CATALOGUE) -> list[Program]:
    """All programs, in the order of the catalogue."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    programs = []
    for name, entry in content.items():
        rows = entry.pop("programs")
        framework = Framework(name, **_tuples(entry))
        programs += [_program(framework, row) for row in rows]
    keys = [program.key for program in programs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{file}: two programs are called {', '.join(twice)}; give them different names")
    return programs


def _program(framework: Framework, row: dict[str, Any]) -> Program:
    if ("run" in row) == ("exec" in row):
        raise ValueError(f"{framework.name}.{row.get('name')}: needs either `run` (a script) or `exec` (a launcher)")
    launcher = "exec" in row
    command = row.pop("exec" if launcher else "run")
    return Program(framework, command=command, launcher=launcher, **_tuples(row))


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
