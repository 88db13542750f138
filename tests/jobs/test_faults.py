"""The faults of docs/faults.md, which scripts/faults injects into real jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rank_runtime.build import Build

ROOT = Path(__file__).parents[2]


def faults(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "faults"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_page_lists_the_faults() -> None:
    assert faults("--check").returncode == 0, "docs/faults.md is stale: run scripts/faults --write"


@pytest.mark.slow
def test_every_fault_is_handled_as_the_page_says(build: Build) -> None:
    ended = faults()
    assert ended.returncode == 0, ended.stdout + ended.stderr
