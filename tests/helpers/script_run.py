"""Runs a script given as text, on virtual GPUs by maya-torchrun or in plain Python.

In: the script, the launcher's options, the script's arguments. Out: exit code, output and the run's folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MayaRun = Callable[..., "ScriptRun"]


@dataclass(frozen=True)
class ScriptRun:
    """A finished maya-torchrun."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path  # its --out

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    @property
    def trace(self) -> Path:
        return self.folder / "rank0.trace"


def runner_in(folder: Path) -> MayaRun:
    """A function that runs scripts in `folder`, each with a run folder of its own."""

    def run(
        script_text: str,
        *options: str,
        script_arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float = 180,
    ) -> ScriptRun:
        number = len(list(folder.glob("script*.py"))) + 1
        script = folder / f"script{number}.py"
        script.write_text(textwrap.dedent(script_text), encoding="utf-8")
        out = folder / f"run{number}"
        ended = subprocess.run(
            [sys.executable, "-m", "maya.launcher", "--out", str(out), *options, str(script), *script_arguments],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return ScriptRun(ended.returncode, ended.stdout, ended.stderr, out)

    return run


def run_plain_python(text: str, environment: Mapping[str, str] | None = None) -> ScriptRun:
    """Runs a script in a Python process of its own, without Maya."""
    ended = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ScriptRun(ended.returncode, ended.stdout, ended.stderr, Path())
