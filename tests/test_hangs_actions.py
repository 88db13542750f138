"""What follows a hang, and hangs on purpose."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hang_launch import ROOT, SCRIPTS

from rank_runtime.build import Build

STEPS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
for step in range(6):
    value = torch.ones(8, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
print("done", rank)
dist.destroy_process_group()
"""


def command(folder: Path, script: Path, *options: str, ranks: int = 2) -> list[str]:
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", *options, str(script)]
    return [sys.executable, "-m", "maya.torchrun", *words]


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


# ---- on purpose ----


def post(token: int) -> Post:
    return Post(token, 1, Call.ALL_REDUCE, 0, 1, 0, 0, -1, (), False)


def test_faults_are_read() -> None:
    assert parse("kill:rank=3,call=10") == Fault("kill", 3, call=10)
    assert parse("delay:rank=0,call=2,seconds=1.5") == Fault("delay", 0, call=2, seconds=1.5)
    for text, expected in (
        ("explode:rank=1", "expected kill, drop, error or delay"),
        ("drop:rank=one,call=2", "'rank=one' is not a key and a number"),
        ("drop:rank=1,step=2", "drop takes call=,rank="),
        ("drop:rank=1,call=0", "calls and steps at 1"),
    ):
        with pytest.raises(FaultError) as found:
            parse(text)
        assert expected in str(found.value)


def test_a_fault_happens_once_and_at_its_call() -> None:
    faults = Faults([parse("drop:rank=1,call=2"), parse("error:rank=0,call=1")])
    assert faults.instead(1, 0, post(7), None, 0.0) is None
    assert faults.instead(1, 0, post(8), None, 0.0) == [(1, Done(8, (), False), None)]
    assert faults.instead(1, 0, post(9), None, 0.0) is None
    ((rank, failed, _),) = faults.instead(0, 0, post(1), None, 0.0) or []
    assert rank == 0
    assert isinstance(failed, Failed)
    assert failed.result == 6


def test_a_delayed_call_comes_later() -> None:
    faults = Faults([parse("delay:rank=1,call=1,seconds=2")])
    assert faults.instead(1, 0, post(7), None, 10.0) == []
    assert faults.delays
    assert faults.due(11.9) == []
    assert faults.due(12.0) == [(1, post(7), None)]
    assert not faults.delays


def test_a_rank_is_killed_after_a_step(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        faults = Faults([parse("kill:rank=1,step=2")])
        assert faults.instead(1, process.pid, Alive(1), None, 0.0) is None
        assert faults.instead(1, process.pid, Alive(2), None, 0.0) == []
        assert process.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.slow
def test_a_dropped_collective_is_found(build: Build, tmp_path: Path) -> None:
    ended = steps(tmp_path, "--inject", "drop:rank=1,call=3")
    assert ended.returncode == 1
    assert "rank 0: waits in all_reduce #3 of the default group" in ended.stderr
    assert "rank 1 never called it" in ended.stderr


@pytest.mark.slow
def test_a_killed_rank_ends_the_attempt_as_under_torchrun(build: Build, tmp_path: Path) -> None:
    ended = steps(tmp_path, "--inject", "kill:rank=1,call=4", "--max-restarts", "1")
    assert ended.returncode == 0, ended.stderr
    assert "Signal 9 (SIGKILL) received by PID" in ended.stderr
    assert ended.stdout.count("done") == 2
    assert not (tmp_path / "out" / "hang.json").exists()


@pytest.mark.slow
def test_a_delayed_collective_is_no_hang(build: Build, tmp_path: Path) -> None:
    ended = steps(tmp_path, "--inject", "delay:rank=1,call=3,seconds=4")
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "out" / "hang.json").exists()
