"""`maya` commands whose standard streams are closed, full or broken pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.standard_streams import broken_pipe, close_standard_streams

COMMANDS = [
    ("net", "show", "dgx-h100"),
    ("estimate", "--op", "gemm", "--m", "64", "--n", "64", "--k", "64", "--gpu", "h100"),
]


def maya(*words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "maya.cli", *words], text=True, check=False, timeout=60, **streams)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_ends_quietly_when_its_reader_has_gone(words: tuple[str, ...]) -> None:
    with broken_pipe() as pipe:
        done = maya(*words, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_lost_output_fails_the_command() -> None:
    with Path("/dev/full").open("w") as full:
        done = maya("gpus", stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert done.stderr == "maya: cannot write to standard output: No space left on device\n"
        assert maya("gpus", "no-such-gpu", stdout=full, stderr=full).returncode == 1


def test_a_command_runs_without_standard_streams() -> None:
    assert maya("gpus", preexec_fn=close_standard_streams).returncode == 0
