"""Runs a job that hangs, or seems to hang, and reads its reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "jobs" / "hangs"


@dataclass(frozen=True)
class HangRun:
    """A run that is over."""

    exit_code: int
    output: str
    folder: Path

    @property
    def report(self) -> dict[str, Any] | None:
        file = self.folder / "hang.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    @property
    def suspicion(self) -> dict[str, Any] | None:
        file = self.folder / "no_progress.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return found

    @property
    def exit_codes(self) -> list[int]:
        """Of the ranks."""
        return [rank["exit_code"] for rank in self.summary["ranks"]]


def launch(folder: Path, script: Path, ranks: int, *options: str, **variables: str) -> HangRun:
    """`folder`: the run's own is made in it."""
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", *options, str(script)]
    command = [sys.executable, "-m", "maya.launcher", *words]
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    return HangRun(ended.returncode, ended.stdout + ended.stderr, folder / "out")
