"""The compilers of this machine, and how their commands are run.

In: $CC, $CXX and the search path. Out: `Compiler`s, and commands run with a log file; a command that fails becomes a
BuildError that shows it with the first lines of its output.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rank_runtime.build.errors import BuildError

ERROR_LINES_SHOWN = 12
ERROR_LINE = re.compile(r"\berror: |undefined reference|cannot find ")


@dataclass(frozen=True)
class Compiler:
    """A compiler that answered when asked for its version."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Toolchain:
    """The compilers of one build."""

    c: Compiler
    cxx: Compiler | None  # without one there is no op observer

    @property
    def version(self) -> str:
        """Both versions in one text."""
        return f"{self.c.version}, {self.cxx.version if self.cxx else 'no C++ compiler'}"


def find_toolchain() -> Toolchain | None:
    """The compilers of this machine; None if there is no C compiler."""
    c_compiler = find_c_compiler()
    return Toolchain(c_compiler, find_cxx_compiler()) if c_compiler else None


def find_c_compiler() -> Compiler | None:
    """$CC, or the first of gcc, cc and clang."""
    return _find("CC", ("gcc", "cc", "clang"))


def find_cxx_compiler() -> Compiler | None:
    """$CXX, or the first of g++, c++ and clang++."""
    return _find("CXX", ("g++", "c++", "clang++"))


def _find(variable: str, names: Sequence[str]) -> Compiler | None:
    chosen = os.environ.get(variable)
    if not chosen:
        candidates = (_ask((path,)) for path in map(shutil.which, names) if path)
        return next((compiler for compiler in candidates if compiler), None)
    compiler = _ask(tuple(shlex.split(chosen)))
    if compiler is None:
        raise BuildError(f"${variable} is set to {chosen!r}, which does not run. Correct it, or unset it.")
    return compiler


def _ask(command: tuple[str, ...]) -> Compiler | None:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, env=_environment())
    except OSError:
        return None
    lines = answer.stdout.splitlines()
    return Compiler(command, lines[0]) if answer.returncode == 0 and lines else None


def _environment() -> dict[str, str]:
    """The environment of compilers: without our preloaded libraries, and with messages in English."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**environment, "LC_ALL": "C"}


class CommandLog:
    """Runs commands in one folder and keeps their output in one file; several threads may use it."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder
        self._lock = threading.Lock()
        path.write_text("")

    def note(self, line: str) -> None:
        """Add a line of our own."""
        with self._lock, self.path.open("a") as file:
            file.write(line + "\n")

    def run(self, command: Sequence[str], purpose: str) -> None:
        """Run `command`; raise BuildError if it fails."""
        text = shlex.join(command)
        answer = subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.note(f"$ {text}\n{answer.stdout}".rstrip())
        if answer.returncode != 0:
            raise BuildError(
                f"{purpose} failed (exit status {answer.returncode}):\n"
                f"{_first_errors(answer.stdout)}\n"
                f"Command: {text}\n"
                f"Full log: {self.path}"
            )


def _first_errors(output: str) -> str:
    """The output from its first error on; warnings before it are in the log."""
    lines = output.splitlines() or ["(the command printed nothing)"]
    first = next((number for number, line in enumerate(lines) if ERROR_LINE.search(line)), 0)
    return "\n".join("  " + line for line in lines[first : first + ERROR_LINES_SHOWN])
