"""Injected faults (--inject) and perturbed event orders (--schedule-seed) in jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from helpers.recorded_run import maya

from rank_runtime.build import Build

ROOT = Path(__file__).parents[2]
TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(2048, 2048, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(1024, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"done {rank} {time.perf_counter():.3f}\\n", end="")  # in one piece: ranks share the stream
    dist.destroy_process_group()


main()
"""


def run(folder: Path, *options: str, script: str | Path = TRAIN, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    if isinstance(script, str):
        (folder / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
        script = folder / "train.py"
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), *options, str(script)]
    command = [sys.executable, "-m", "maya.launcher", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    return content


def test_an_unknown_link_is_refused(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--inject", "link:at=node0/nik3")
    assert ended.returncode == 2
    assert 'fault of "node0/nik3": nothing here has that name (did you mean node0/nic3' in ended.stderr


# ---- in a rank ----


def test_a_job_is_restarted_after_an_injected_exception(build: Build, tmp_path: Path) -> None:
    """As under torchrun: the exception is in the rank's error file, the others are ended, and all begin again."""
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", "raise:rank=1,call=6")
    assert ended.returncode == 0, ended.stderr
    reason = "call 6 of rank 1 fails because of --inject raise:rank=1,call=6"
    (error_file,) = (tmp_path / "out").rglob("attempt_0/1/error.json")
    message = json.loads(error_file.read_text(encoding="utf-8"))["message"]
    assert message["message"].startswith("DistBackendError: NCCL error")
    assert reason in message["message"]
    root_cause = ended.stderr.split("Root Cause")[1]
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : 1" in root_cause
    assert ended.stdout.count("done") == 2
    assert summary(tmp_path)["attempts"] == 2
    assert summary(tmp_path)["injected"] == ["raise:rank=1,call=6"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "exit_code", "expected"),
    [
        ("kill:rank=1,step=2", -signal.SIGKILL, "Signal 9 (SIGKILL) received by PID"),
        ("kill:rank=1,call=6", -signal.SIGKILL, "Signal 9 (SIGKILL) received by PID"),
        ("raise:rank=1,step=2", 1, "RuntimeError: rank 1 fails after step 2 because of --inject raise:rank=1,step=2"),
        ("oom:rank=1,step=2", 1, "OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("oom:rank=1,allocation=2", 1, "OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ],
)
def test_a_job_resumes_after_a_restart(build: Build, tmp_path: Path, fault: str, exit_code: int, expected: str) -> None:
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", fault)
    assert ended.returncode == 0, ended.stderr
    assert expected in ended.stderr
    assert f"exitcode  : {exit_code} (pid: " in ended.stderr.split("Root Cause")[1]
    assert ended.stdout.count("done") == 2
    assert not (tmp_path / "out" / "hang.json").exists()


@pytest.mark.slow
def test_a_fault_in_every_attempt_exhausts_the_restarts(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", "kill:rank=1,step=1,attempt=all")
    assert ended.returncode == 1
    assert ended.stderr.count("Root Cause") == 2
    assert [rank["exit_code"] for rank in summary(tmp_path)["ranks"]] == [-signal.SIGTERM, -signal.SIGKILL]


OUT_OF_MEMORY = """
import torch

torch.cuda.set_device(0)
kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
for size in (2 << 30, 1 << 30):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        print("fits", size)
        break
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_an_injected_out_of_memory_error_is_pytorchs_own(build: Build, tmp_path: Path) -> None:
    """The numbers fit together, and a program that asks for less goes on. One rank is enough."""
    ended = run(tmp_path, "--inject", "oom:rank=0,allocation=2", script=OUT_OF_MEMORY, ranks=1)
    assert ended.returncode == 0, ended.stderr
    assert (
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0 bytes is free" in ended.stdout
    )
    assert "3.00 GiB is allocated by PyTorch" in ended.stdout
    assert f"fits {1 << 30}" in ended.stdout


STEPS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
for step in range(6):
    dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
"""


@pytest.mark.slow
def test_a_dropped_collective_is_found(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--inject", "drop:rank=1,call=3", script=STEPS)
    assert ended.returncode == 1
    assert "rank 0: waits in all_reduce #3 of the default group" in ended.stderr
    assert "rank 1 never called it" in ended.stderr


@pytest.mark.slow
def test_an_injected_network_error_fails_the_communicator(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--inject", "error:rank=1,call=6")
    assert ended.returncode == 1
    assert "a call on it failed (injected by --inject)" in ended.stderr
    assert "ncclRemoteError" in ended.stderr


@pytest.mark.slow
def test_an_injected_delay_shows_in_all_clocks_and_in_the_prediction(build: Build, tmp_path: Path) -> None:
    """The delay is in the trace, so a replay has it as well. A rank that sleeps is no hang."""
    ended = run(tmp_path, "--inject", "delay:rank=1,call=7,seconds=2.5", "--inject", "kill:rank=1,call=99")
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "out" / "hang.json").exists()
    clocks = [float(line.split()[2]) for line in ended.stdout.splitlines()]
    assert [int(10 * seconds) for seconds in clocks] == [25, 25]
    assert summary(tmp_path)["prediction"]["steps"]
    assert "--inject kill:rank=1,call=99 never happened: the rank made 9 calls, 4 steps" in ended.stderr


# ---- links ----


@pytest.mark.slow
def test_a_slow_link_is_in_the_clocks_the_prediction_and_the_replay(build: Build, tmp_path: Path) -> None:
    clocks = []
    for name, options in (("well", []), ("slow", ["--inject", "link:at=node0/nic0,left=10%"])):
        (tmp_path / name).mkdir()
        place = ["--nnodes", "2", "--nproc-per-node", "1", "--cluster", "dgx-h100", *options]
        ended = run(tmp_path / name, *place)
        assert ended.returncode == 0, ended.stderr
        clocks.append(summary(tmp_path / name)["emulation"]["coordinator"]["host_ns"])
    assert min(clocks[1]) > max(clocks[0])
    replayed = maya("whatif", tmp_path / "well" / "out", "--fault", "node0/nic0=10%", "--json")
    assert replayed.exit_code == 0, replayed.output
    asked_later = json.loads(replayed.output)["what_if"]["step_ns"]
    assert summary(tmp_path / "slow")["prediction"]["steps"]["median_ns"] == asked_later


# ---- the order of events ----

RACE = ROOT / "tests" / "jobs" / "races" / "first_to_finish.py"


def test_a_race_stays_hidden_without_a_seed(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", script=RACE)
    assert ended.returncode == 0, ended.stderr
    assert "is different" not in ended.stdout


@pytest.mark.parametrize(
    ("seed", "rank", "step"),
    [(2, 0, 0), pytest.param(5, 1, 4, marks=pytest.mark.slow), pytest.param(6, 0, 1, marks=pytest.mark.slow)],
)
def test_a_seed_exposes_a_race(build: Build, tmp_path: Path, seed: int, rank: int, step: int) -> None:
    """Always the same way, and so in the step and rank that were noted here."""
    ended = run(tmp_path, "--no-trace", "--schedule-seed", str(seed), script=RACE)
    assert ended.returncode == 1
    assert f"mismatch: collective {step} on communicator" in ended.stderr
    assert ended.stdout.startswith(f"rank {rank} is different in step {step}\n")
    assert f"rank {1 - rank} is different in step {step}" not in ended.stdout
    assert summary(tmp_path)["schedule_seed"] == seed


def test_predicted_times_do_not_depend_on_the_order_of_events(build: Build, tmp_path: Path) -> None:
    results = []
    for name, options in (("none", []), ("seed", ["--schedule-seed", "4"])):
        (tmp_path / name).mkdir()
        ended = run(tmp_path / name, *options)
        assert ended.returncode == 0, ended.stderr
        content = summary(tmp_path / name)
        prediction = content["prediction"]
        del prediction["memory"]  # which depends on when PyTorch's allocator looks at other streams
        for rank in prediction["ranks"]:
            del rank["memory_bytes"]
        results.append((sorted(ended.stdout.splitlines()), prediction, content["emulation"]["coordinator"]["host_ns"]))
    assert results[0] == results[1]
