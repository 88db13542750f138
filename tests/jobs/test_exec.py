"""`maya exec`: whatever starts the ranks, they meet, and the job is predicted when the command ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import maya
from maya.trace import read
from rank_runtime.build import Build

SPAWN = """
import sys
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, store):
    started, now = time.time(), time.perf_counter()
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(256, 256).to(rank)  # before the process knows its place
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world_size)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.zeros(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    total = torch.tensor([1.0 + rank], device="cuda")
    dist.all_reduce(total)
    goes_on = 0 < time.time() - started < 120 and 0 < time.perf_counter() - now < 120
    sys.stdout.write(f"rank {rank} of {dist.get_world_size()}: {total.item()}, clocks go on: {goes_on}\\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    print(f"{torch.cuda.device_count()} GPUs", flush=True)
    for world_size, store in ((2, sys.argv[1] + ".2"), (3, sys.argv[1] + ".3")):
        mp.spawn(train, args=(world_size, store), nprocs=world_size)
"""
TRAIN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
ALONE = """
import multiprocessing
import os
import sys
import torch


def train(device):
    torch.cuda.set_device(device)
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    os.write(1, f"{device} of {torch.cuda.device_count()}\\n".encode())


if __name__ == "__main__":
    if "forks" in sys.argv:  # the parent only counts the GPUs
        assert torch.cuda.device_count() == 3
        child = multiprocessing.get_context("fork").Process(target=train, args=(1,))
        child.start()
        child.join()
        sys.exit(child.exitcode)
    train(int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))
"""
HANGS = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, store):
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)
        torch.cuda.synchronize()
    open(0).read()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=2)
"""
WAITS = """
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(100)
"""


@dataclass(frozen=True)
class ExecRun:
    """A finished maya exec."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path  # its --out

    @property
    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return content


def words(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "maya.cli", "exec", "--out", str(out), *options, "--"]


def maya_exec(
    folder: Path,
    *command: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    text: str | None = None,
) -> ExecRun:
    (folder / "script.py").write_text(text or "", encoding="utf-8")
    out = folder / "run"
    ended = subprocess.run(
        [*words(out, *options), *command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return ExecRun(ended.returncode, ended.stdout, ended.stderr, out)


def test_ranks_of_mp_spawn_meet_and_every_job_is_a_run(build: Build, tmp_path: Path) -> None:
    run = maya_exec(tmp_path, "python", "script.py", str(tmp_path / "store"), text=SPAWN)
    assert run.exit_code == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "8 GPUs"
    assert sorted(lines[1:3]) == [f"rank {rank} of 2: 3.0, clocks go on: True" for rank in range(2)]
    assert sorted(lines[3:]) == [f"rank {rank} of 3: 6.0, clocks go on: True" for rank in range(3)]
    assert run.summary["world_size"] == 2
    assert run.summary["prediction"]["steps"]["count"] == 4
    other = json.loads((tmp_path / "maya-runs" / "script-1" / "summary.json").read_text(encoding="utf-8"))
    assert other["world_size"] == 3
    assert other["prediction"]["steps"]["count"] == 4
    for folder, ranks in ((run.folder, 2), (tmp_path / "maya-runs" / "script-1", 3)):
        assert [read(folder / f"rank{rank}.trace").header.rank for rank in range(ranks)] == list(range(ranks))
    assert "not predicted" not in run.stderr


def test_torchrun_gets_the_prediction_of_maya_torchrun(build: Build, tmp_path: Path) -> None:
    run = maya_exec(
        tmp_path, "torchrun", "--nproc-per-node", "2", "script.py", options=["--gpu", "a100-80"], text=TRAIN
    )
    assert run.exit_code == 0, run.stderr
    other = tmp_path / "other"
    command = [sys.executable, "-m", "maya.launcher", "--out", str(other), "--nproc", "2", "--gpu", "a100-80"]
    subprocess.run([*command, "script.py"], cwd=tmp_path, capture_output=True, check=True, timeout=180)
    assert (run.summary["world_size"], run.summary["ranks_per_node"]) == (2, 2)
    one, two = maya.load(run.folder).predict(), maya.load(other).predict()
    assert one.result.step_ns == two.result.step_ns


@pytest.mark.parametrize("launcher", ["forks", "mpirun"])
def test_ranks_without_a_process_group(build: Build, tmp_path: Path, launcher: str) -> None:
    """mpirun's variables make them ranks of one job; a process without any is a job of its own."""
    variables = "OMPI_COMM_WORLD_RANK=$i OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$i"
    starts = {
        "forks": "python script.py forks",
        "mpirun": f"for i in 0 1; do {variables} python script.py & done; wait",
    }
    run = maya_exec(
        tmp_path,
        *("sh", "-c", starts[launcher]),
        options=["--trace-ranks", "0,9"],
        environment={"CUDA_VISIBLE_DEVICES": "2,5,7"},
        text=ALONE,
    )
    assert run.exit_code == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == {"forks": ["1 of 3"], "mpirun": ["0 of 3", "1 of 3"]}[launcher]
    assert run.summary["world_size"] == {"forks": 1, "mpirun": 2}[launcher]
    assert run.summary["prediction"]["steps"]["count"] == 3
    size = {"forks": "1 rank", "mpirun": "2 ranks"}[launcher]
    assert f"--trace-ranks 0,9: this job has {size}, so the others have no trace file" in run.stderr
    assert [path.name for path in (run.folder / "traces").iterdir()] == ["rank0_trace.json.gz"]


def test_maya_torchrun_below_it_predicts_its_own_job(build: Build, tmp_path: Path) -> None:
    own = [sys.executable, "-m", "maya.launcher", "--out", str(tmp_path / "own"), "script.py"]
    run = maya_exec(tmp_path, *own, text="import torch; torch.ones(1, device='cuda')")
    assert run.exit_code == 0, run.stderr
    assert (tmp_path / "own" / "summary.json").exists()
    assert "nothing recorded" not in run.stderr
    assert not run.folder.exists()


def test_a_command_that_uses_no_gpu_is_left_alone(build: Build, tmp_path: Path) -> None:
    code = "import sys, time; assert type(sys.stdin.read()) is str; time.time(); sys.exit(3)"
    run = maya_exec(tmp_path, sys.executable, "-c", code)
    assert (run.exit_code, run.stdout) == (3, "")
    assert run.stderr == "maya: nothing recorded: no process used a GPU\n"
    assert not run.folder.exists()


def test_a_failed_command_is_predicted_as_far_as_it_got(build: Build, tmp_path: Path) -> None:
    run = maya_exec(tmp_path, "python", "script.py", text=ALONE + "    os.kill(os.getpid(), 9)\n")
    assert run.exit_code == -signal.SIGKILL
    assert run.summary["exit_code"] == -signal.SIGKILL
    assert run.summary["prediction"]["steps"]["count"] == 3, run.stderr


def test_signals_reach_the_command(build: Build, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS, encoding="utf-8")
    started = subprocess.Popen(
        [*words(tmp_path / "run"), "python", "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
    assert started.returncode == 7


def test_errors_name_the_mistake(build: Build, tmp_path: Path) -> None:
    run = maya_exec(tmp_path, "no-such-program")
    assert (run.exit_code, run.stderr) == (2, "maya: cannot start no-such-program: it was not found\n")
    for options, text in ((("--gpu", "a101"), "a101"), (("--on-hang", "pdb"), "--on-hang pdb")):
        run = maya_exec(tmp_path, "true", options=options)
        assert run.exit_code == 2
        assert text in run.stderr


def test_a_job_without_progress_is_reported(build: Build, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGS, encoding="utf-8")
    started = subprocess.Popen(
        [*words(tmp_path / "run", "--hang-after", "3"), "python", "script.py", str(tmp_path / "store")],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen = []
    with started:
        assert started.stderr is not None
        try:
            for line in started.stderr:
                seen.append(line)
                if "full report" in line:
                    break
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            seen += started.stderr
    assert any("rank 0: waits in all_reduce #2 of" in line for line in seen), "".join(seen)
    assert any("rank 1 has not called it yet" in line for line in seen)


MISMATCH = (
    HANGS.partition("    dist.all_reduce(x)")[0]
    + """
    dist.all_reduce(x)
    x = torch.ones(4 + rank, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=2)
"""
)


def test_ranks_whose_calls_do_not_match_stay_in_them_and_are_ended(build: Build, tmp_path: Path) -> None:
    run = maya_exec(tmp_path, "python", "script.py", str(tmp_path / "store"), text=MISMATCH)
    assert run.exit_code == 1, run.stderr
    assert "maya: mismatch: collective 1 on communicator 1 (ranks 0-1) does not match" in run.stderr
    assert "the 2 ranks of this job are ended (--on-hang wait leaves them)" in run.stderr
    assert "DistBackendError" not in run.stderr
    assert (run.folder / "hang.json").exists()


def test_a_shell_predicts_its_jobs_one_by_one(build: Build, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ALONE, encoding="utf-8")
    shell = subprocess.Popen(
        [sys.executable, "-m", "maya.cli", "shell"],
        cwd=tmp_path,
        env={**os.environ, "SHELL": "/bin/sh"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with shell:
        assert shell.stdin is not None
        assert shell.stderr is not None
        assert "virtual" in shell.stderr.readline()
        for number in (1, 2):
            shell.stdin.write("python script.py\n")
            shell.stdin.flush()
            lines = iter(shell.stderr.readline, "")
            assert any(f"maya report maya-runs/script-{number}" in line for line in lines)
        shell.stdin.write("exit 4\n")
        shell.stdin.close()
    assert shell.returncode == 4
    assert sorted(path.name for path in (tmp_path / "maya-runs").iterdir()) == ["script-1", "script-2"]
