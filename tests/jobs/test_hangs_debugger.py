"""`--on-hang pdb`: a session on a terminal with a job that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.debugger_terminal import on_terminal, processes_of, state_of
from helpers.hang_launch import ROOT

from rank_runtime.build import Build


def test_a_session_on_two_ranks_ends_quietly(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "conditional_all_reduce", 2, "pdb") as terminal:
        report = terminal.until("rank to debug, or q to end the job [1]: ")
        assert "maya-torchrun: deadlock: 2 of 2 ranks" in report
        terminal.type("\n")
        terminal.until("(Pdb rank 1) ")
        assert "conditional_all_reduce.py(17)main()" in terminal.shown
        terminal.type("p rank, step\n")
        assert "(1, 2)" in terminal.until("(Pdb rank 1) ")
        terminal.type("step\n")
        assert "*** not possible on a hanging rank" in terminal.until("(Pdb rank 1) ")
        terminal.type("down\n")
        assert "site-packages/torch/distributed/" in terminal.until("(Pdb rank 1) ")
        terminal.type("q\n")
        terminal.until("[1]: ")
        terminal.type("0\n")
        terminal.until("(Pdb rank 0) ")
        terminal.type("p loss\n")  # what can never come is an error, and no further hang
        assert "device not ready" in terminal.until("(Pdb rank 0) ")
        terminal.type("\x04")
        terminal.until("[0]: ")
        terminal.type("q\n")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_other_ranks_stand_still_and_ctrl_c_leaves_nothing_behind(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "partial_deadlock", 4, "pdb:2") as terminal:
        terminal.until("(Pdb rank 2) ")
        assert "maya-torchrun: partial deadlock" in terminal.shown
        terminal.type("p __import__('os').getpid()\n")
        ranks = [process for process in processes_of(tmp_path) if os.getsid(process) == process]
        answer = terminal.until("(Pdb rank 2) ")
        debugged = [process for process in ranks if f"\n{process}\r" in answer]
        stopped = [process for process in ranks if state_of(process) == "T"]
        assert len(debugged) == 1
        assert len(stopped) == 3
        assert not set(debugged) & set(stopped)
        terminal.type("\x03")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_ranks_have_not_failed_yet_when_calls_do_not_match(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "mismatched_sizes", 4, "pdb") as terminal:
        terminal.until("rank to debug, or q to end the job [3]: ")
        terminal.type("\n")
        terminal.until("(Pdb rank 3) ")
        terminal.type("p batch.shape\n")
        assert "torch.Size([48])" in terminal.until("(Pdb rank 3) ")
        terminal.type("q\n")
        terminal.until("[3]: ")
        terminal.type("\x04")
        assert terminal.exit_code() == 1
    assert "Traceback" not in terminal.shown


@pytest.mark.slow
def test_sleeping_ranks_go_on_if_the_user_continues(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "asleep", 2, "pdb", "--hang-after", "2") as terminal:
        terminal.until("rank to debug, c to go on, or q to end the job [1]: ")
        assert "maya-torchrun: no progress" in terminal.shown
        assert "rank 1 has not called it yet" in terminal.shown
        terminal.type("\n")
        terminal.until("(Pdb rank 1) ")
        terminal.type("q\n")
        terminal.until("[1]: ")
        terminal.type("c\n")
        terminal.until("maya-torchrun: the ranks go on")
        assert [state_of(process) for process in processes_of(tmp_path) if state_of(process) == "T"] == []
        terminal.type("\x03")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


def test_without_a_terminal_the_debugger_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for action, expected in (
        ("pdb", "--on-hang pdb needs a terminal as standard input and output"),
        ("pdb:2", "--on-hang pdb:2: the ranks of this job are 0 to 1"),
        ("pdb:x", "'pdb:x' is none of report, abort, wait, pdb and pdb:RANK"),
    ):
        words = ["--nproc", "2", "--out", str(tmp_path / "out"), "--on-hang", action, "none.py"]
        command = [sys.executable, "-m", "maya.launcher", *words]
        ended = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert expected in ended.stderr
        assert not (tmp_path / "out").exists()
