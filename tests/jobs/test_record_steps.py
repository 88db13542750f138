"""`--record-steps`: the trace ends after some optimizer steps, while the job goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import maya
from rank_runtime.build import Build

TRAIN = """
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began = time.perf_counter()
for step in range(9):
    model(torch.zeros(4, 64, device="cuda")).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    torch.cuda.synchronize()
    sys.stdout.write(f"rank {rank} step {step} {time.perf_counter() - began:.9f}\\n")
    if step == 7 and rank == 0 and "hang" in sys.argv:
        dist.all_reduce(torch.ones(1, device="cuda"))
"""
INFERENCE = """
import torch

model = torch.nn.Linear(64, 64).cuda()
with torch.no_grad():
    for _ in range(200):
        model(torch.zeros(4, 64, device="cuda")).sum()
"""
TWO_OPTIMIZERS = """
import torch

models = [torch.nn.Linear(8, 8).cuda() for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for step in range(8):
    for model, optimizer in zip(models, optimizers):
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        optimizer.step()
"""


def _script(folder: Path, text: str) -> str:
    (folder / "job.py").write_text(text, encoding="utf-8")
    return "job.py"


def _prediction(run: maya.Run) -> dict[str, Any]:
    prediction: dict[str, Any] = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))["prediction"]
    return prediction


def _printed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return sorted(line for line in capfd.readouterr().out.splitlines() if line.startswith("rank"))


def test_the_clocks_go_on_and_the_prediction_is_that_of_a_short_run(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = _script(tmp_path, TRAIN)
    maya.launch(script, cwd=tmp_path, nproc=2, record_steps="all")
    all_times = _printed(capfd)
    recorded = maya.launch(script, cwd=tmp_path, nproc=2, record_steps=4)
    assert _printed(capfd) == all_times
    stopped = maya.launch(script, cwd=tmp_path, nproc=2, stop_after=4)
    ours, short = _prediction(recorded), _prediction(stopped)
    assert ours["steps"].pop("note") == "recorded up to optimizer step 4 of 9 (--record-steps)"
    assert short["steps"].pop("note") == ""
    assert ours == short


def test_a_hang_after_the_recording_is_reported(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = maya.launch(_script(tmp_path, TRAIN), ["hang"], cwd=tmp_path, nproc=2, record_steps=4, check=False)
    assert run.exit_code == 1
    assert run.hang is not None
    assert "job.py:21: dist.all_reduce(torch.ones(1" in run.hang.text
    assert "by the 4 recorded steps, a step takes" in capfd.readouterr().out


def test_without_an_optimizer_the_recording_ends_after_many_operations(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAYA_RECORD_OPERATIONS", "60")
    run = maya.launch(_script(tmp_path, INFERENCE), cwd=tmp_path, quiet=True)
    assert run.exit_code == 0
    assert "recorded up to 60 operations without an optimizer step" in _prediction(run)["steps"]["note"]
    assert run.trace().limit == maya.trace.RecordingLimit(0, 0, 60)


def test_optimizers_that_take_turns_are_recorded_equally_often(build: Build, tmp_path: Path) -> None:
    run = maya.launch(_script(tmp_path, TWO_OPTIMIZERS), cwd=tmp_path, quiet=True, record_steps=5)
    steps = _prediction(run)["steps"]
    assert steps["count"] == 5
    assert "recorded up to optimizer step 5 of 8" in steps["note"]
