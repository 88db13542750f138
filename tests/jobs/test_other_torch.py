"""Other releases of torch than the one scripts/setup installs: CUDA 12 and CUDA 13 builds, in a copy of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# One file a family of what differs between releases: the whole path, cuDNN's graphs, values, streams, watchdogs, how
# kernels are launched.
TESTS = (
    "programs/test_tiny.py",
    "programs/test_cudnn.py",
    "programs/test_values.py",
    "programs/test_random_numbers.py",
    "programs/test_placeholders.py",
    "programs/test_streams.py",
    "jobs/test_determinism.py",
    "programs/test_split_ops.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.8.0", "2.15.0"])
def test_other_releases_of_torch_pass_the_tests(version: str, tmp_path: Path) -> None:
    copy = tmp_path / "maya"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "maya-runs", "__pycache__", ".*_cache"))
    environment = {**os.environ, "MAYA_TORCH_VERSION": version, "MAYA_CACHE": str(tmp_path / "cache")}
    subprocess.run([copy / "scripts" / "setup"], env=environment, check=True)
    python = copy / ".venv" / "bin" / "python"
    tests = [f"tests/{name}" for name in TESTS]
    subprocess.run([python, "-m", "pytest", "-q", "-m", "not slow", *tests], cwd=copy, env=environment, check=True)
    shutil.rmtree(copy)  # a gigabyte and a half that pytest would keep
