"""The `maya` command, except for `maya doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maya import __version__
from maya.cli.main import main
from rank_runtime.variables import RANK_VARIABLES, SETUP_VARIABLES


def maya(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_version() -> None:
    assert maya("--version").output == f"maya, version {__version__}\n"


def test_gpus() -> None:
    lines = maya("gpus").output.splitlines()
    assert len(lines) == 11
    [h100] = [line for line in lines if line.startswith("h100 ")]
    assert " ".join(h100.split()) == "h100 NVIDIA H100 80GB HBM3 sm 9.0 132 SMs 79.1 GiB 3352 GB/s 989 TFLOPS fp16"


def test_one_gpu() -> None:
    output = maya("gpus", "v100").output
    assert "Tesla V100-SXM2-32GB" in output
    assert "34,089,730,048" in output
    assert "bf16" not in output


def test_unknown_gpu() -> None:
    result = maya("gpus", "h10")
    assert result.exit_code == 1
    assert result.output.startswith('Error: unknown GPU "h10" (did you mean h100')


def test_every_variable_for_users_is_listed() -> None:
    names = [line.split()[0] for line in maya("env").output.splitlines()]
    assert names == [variable.name for variable in (*RANK_VARIABLES, *SETUP_VARIABLES) if not variable.internal]
    assert "MAYA_KEPT_BYTES" in names
    assert "MAYA_COORDINATOR_SECRET" not in names


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.trace"], "'nowhere.trace' does not exist"),
        ([__file__], "is not a trace of Maya"),
        (["--kind", "kernels", __file__], "no records of kind 'kernels'"),
    ],
)
def test_trace_that_cannot_be_shown(words: list[str], expected: str) -> None:
    result = maya("trace", "show", *words)
    assert result.exit_code != 0
    assert expected in result.output.replace(str(Path(__file__)), "FILE")
