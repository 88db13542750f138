"""`maya doctor` on this machine, as it is and with less: it imports torch in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from maya.cli.main import main


def test_this_machine_is_fit() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.output
    assert "torch" in result.output


@pytest.fixture(scope="module")
def unfit(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """`maya doctor` without compilers, with few open files and little address space."""
    empty = str(tmp_path_factory.mktemp("empty"))
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            'ulimit -n 300; ulimit -v 100000000; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "maya.cli",
            "doctor",
        ],
        env={**os.environ, "PATH": empty, "CC": "", "CXX": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_machine_without_compilers_fails(unfit: subprocess.CompletedProcess[str]) -> None:
    assert unfit.returncode == 1
    assert "install gcc" in unfit.stdout
    assert "install g++" in unfit.stdout


def test_limits_of_the_machine_are_checked(unfit: subprocess.CompletedProcess[str]) -> None:
    assert unfit.returncode == 1
    assert "want 1024" in unfit.stdout
    assert "ulimit -v unlimited" in unfit.stdout
