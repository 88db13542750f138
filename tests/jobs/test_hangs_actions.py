"""`--on-hang wait`, `--on-hang abort`, and `maya stacks`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.hang_launch import ROOT, SCRIPTS, launch

from rank_runtime.build import Build


def command(folder: Path, script: Path, *options: str, ranks: int = 2) -> list[str]:
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", *options, str(script)]
    return [sys.executable, "-m", "maya.launcher", *words]


SAME_GPU = """
import logging, sys
import torch, torch.distributed as dist

dist.init_process_group("nccl")
x = torch.ones(4, device="cuda")
try:
    dist.all_reduce(x)
except dist.DistBackendError:
    logging.warning("cannot continue")
    print("device", torch.cuda.current_device(), "of rank", dist.get_rank(), file=sys.stderr)
    raise
"""


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


# ---- reports on request ----

ASKED = """
import sys, time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def load() -> None:
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)  # polls


dist.barrier()
torch.cuda.synchronize()
Path(f"{sys.argv[1]}-{rank}").touch()
if rank == 2:
    load()
dist.all_reduce(torch.ones(4, device="cuda"))  # waits
torch.cuda.synchronize()
"""


def test_a_running_job_says_what_its_ranks_do(build: Build, tmp_path: Path) -> None:
    script, signal_file = tmp_path / "asked.py", tmp_path / "go"
    script.write_text(ASKED, encoding="utf-8")
    words = [*command(tmp_path, script, ranks=4), str(signal_file)]
    ask = [sys.executable, "-m", "maya.cli", "stacks", str(tmp_path / "out")]
    shown = ""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while len(list(tmp_path.glob("go-*"))) < 4 and process.poll() is None:
            time.sleep(0.1)
        deadline = time.monotonic() + 60
        while "rank 2 has not called it yet" not in shown and process.poll() is None and time.monotonic() < deadline:
            shown = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=True).stdout
        as_json = subprocess.run([*ask, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
        signal_file.touch()
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert "no progress" not in output
    waits = ASKED.splitlines().index('dist.all_reduce(torch.ones(4, device="cuda"))  # waits') + 1
    assert shown.startswith("now, 4 ranks do this:")
    assert "  ranks 0-1, 3: wait in all_reduce #2 of communicator 1 (4 ranks), 4 fp32, 16 bytes" in shown
    assert f"at asked.py:{waits}: dist.all_reduce" in shown
    (report,) = json.loads(as_json)
    (odd,) = (group for group in report["groups"] if group["ranks"] == [2])
    assert "load" in [frame["function"] for frame in odd["stack"]]
    assert report["odd"] == [2]
    ended = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"no job is running that records into {tmp_path / 'out'}" in ended.stderr


@pytest.mark.slow
def test_ranks_that_share_gpus_print_a_screen_with_the_report_last(build: Build, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAME_GPU, encoding="utf-8")
    run = launch(tmp_path, script, 32)
    assert run.exit_code == 1
    assert len(run.output.splitlines()) <= 60, run.output
    assert run.output.count("cannot continue") == run.output.count("device 0 of rank") == 1
    assert run.output.count("Traceback") == 1
    assert "the same traceback as rank" in run.output
    assert run.output.rindex("maya-torchrun: mismatch: Duplicate GPU") > run.output.rindex("Root Cause")
