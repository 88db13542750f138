"""`--on-hang wait` and `--on-hang abort`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.hang_launch import ROOT, SCRIPTS

from rank_runtime.build import Build


def command(folder: Path, script: Path, *options: str, ranks: int = 2) -> list[str]:
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", *options, str(script)]
    return [sys.executable, "-m", "maya.launcher", *words]


# ---- what follows ----


@pytest.mark.slow
def test_on_hang_wait_reports_and_goes_on(build: Build, tmp_path: Path) -> None:
    words = command(tmp_path, SCRIPTS / "crossed_receives.py", "--on-hang", "wait")
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 150
        while not (tmp_path / "out" / "hang.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)
    assert "maya-torchrun: deadlock: 2 of 2 ranks" in output
    assert process.returncode == 1


@pytest.mark.slow
def test_on_hang_abort_ends_ranks_with_sigabrt(build: Build, tmp_path: Path) -> None:
    words = command(tmp_path, SCRIPTS / "crossed_receives.py", "--on-hang", "abort")
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [rank["exit_code"] for rank in summary["ranks"]] == [-signal.SIGABRT, -signal.SIGABRT]


def test_unknown_actions_are_refused_by_name(tmp_path: Path) -> None:
    for option, value, expected in (
        ("--on-hang", "explode", "'explode' is none of report, abort, wait, pdb and pdb:RANK"),
        ("--hang-after", "soon", "'soon' is not a number of seconds"),
    ):
        words = command(tmp_path, tmp_path / "none.py", option, value)
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert expected in ended.stderr
