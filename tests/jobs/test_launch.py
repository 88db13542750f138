"""`maya.launch`: jobs that end well, fail, hang, or cannot be started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import maya
from rank_runtime.build import Build

TRAIN = """
import sys
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
print("trained", sys.argv[1:])
"""
FAIL = "raise SystemExit('no data')"
HANG = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
"""


def script(folder: Path, text: str) -> str:
    (folder / "job.py").write_text(text, encoding="utf-8")
    return "job.py"


def test_job_that_ends_well(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = maya.launch(script(tmp_path, TRAIN), [3], cwd=tmp_path, gpu="a100-80", set={"power": "300W"})
    assert run.folder == tmp_path / "maya-runs" / "job-1"
    assert (run.exit_code, run.settings.gpu, run.settings.changes) == (0, "a100-80", {"power": "300W"})
    assert len(run.steps) == 3
    assert run.summary is not None
    assert run.prediction.to_dict() == run.summary["prediction"]
    assert "trained ['3']" in capsys.readouterr().out


def test_quiet_job(build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = maya.launch(script(tmp_path, TRAIN), ["1"], cwd=tmp_path, out="run", no_timeline=True, quiet=True)
    assert run.folder == tmp_path / "run"
    assert capsys.readouterr().out == ""


def test_job_that_fails(build: Build, tmp_path: Path) -> None:
    with pytest.raises(maya.LaunchError, match="exit code 1: the job failed; logs and traces are in") as caught:
        maya.launch(script(tmp_path, FAIL), cwd=tmp_path, quiet=True)
    error = caught.value
    assert (error.exit_code, error.run.exit_code) == (1, 1)
    assert "no data" in error.output


def test_job_that_cannot_be_started(build: Build, tmp_path: Path) -> None:
    with pytest.raises(maya.LaunchError, match="could not be started") as caught:
        maya.launch(script(tmp_path, TRAIN), cwd=tmp_path, gpu="h10", quiet=True)
    assert caught.value.exit_code == 2
    assert 'unknown GPU "h10"' in caught.value.output
    assert list((tmp_path / "maya-runs").iterdir()) == []


def test_interrupt_ends_the_job(build: Build, tmp_path: Path) -> None:
    """As in a notebook whose kernel is interrupted: the job's processes end, and the interrupt is raised."""
    sleeping = script(tmp_path, "import time; print('asleep', flush=True); time.sleep(600)")
    code = f"import maya; maya.launch({sleeping!r}, nproc=2, no_preload=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        while "asleep" not in caller.stdout.readline():
            assert caller.poll() is None
        jobs = psutil.Process(caller.pid).children(recursive=True)
        caller.send_signal(signal.SIGINT)
        _, errors = caller.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert len(jobs) > 2
    assert not any(job.is_running() for job in jobs)


def test_hang_of_a_job(build: Build, tmp_path: Path) -> None:
    run = maya.launch(script(tmp_path, HANG), nproc=2, cwd=tmp_path, check=False, quiet=True)
    assert run.exit_code == 1
    assert run.hang is not None
    assert (run.hang.kind, run.hang.stuck_ranks) == ("deadlock", (0,))
    assert "rank 0: waits in all_reduce" in run.hang.text
