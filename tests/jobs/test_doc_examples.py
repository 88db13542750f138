"""The examples of docs/python.md and docs/python.ipynb: they run, and print what the documents say."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rank_runtime.build import Build
from rank_runtime.variables import SETUP_VARIABLES

ROOT = Path(__file__).parents[2]
[_TORCH] = [variable.default for variable in SETUP_VARIABLES if variable.name == "MAYA_TORCH_VERSION"]


@pytest.mark.skipif(version("torch").partition("+")[0] != _TORCH, reason="another torch launches other kernels")
@pytest.mark.parametrize("name", ["python.md", "python.ipynb"])
def test_examples_print_what_the_document_says(build: Build, name: str) -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, str(ROOT / "scripts" / "run_doc_examples"), "--check", f"docs/{name}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
