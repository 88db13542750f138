"""A survey on a machine with little memory runs the ranks of a round in turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maya.launcher import main
from maya.launcher.capacity import ranks_that_fit
from rank_runtime.build import Build

MIB = 2**20
PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % 8)
weight = torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
optimizer = torch.optim.SGD([weight])
for _ in range(2):
    (torch.zeros(32 if rank < world - 1 else 8, 64, device="cuda") @ weight).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
dist.destroy_process_group()
"""


def test_ranks_fit_as_long_as_a_fifth_of_the_memory_is_left() -> None:
    assert ranks_that_fit(8000 * MIB, 100 * MIB) == (6400 - 600) // 100
    assert ranks_that_fit(0, 100 * MIB) == 1


@pytest.mark.slow
def test_what_does_not_fit_together_runs_in_turns(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "maya.launcher.survey.ranks_that_fit", lambda available, rank_bytes: 5 if rank_bytes > 0 else 16
    )
    Path("train.py").write_text(PROGRAM, encoding="utf-8")
    assert main(["--nproc", "16", "--represent", "auto", "--out", "run", "train.py"]) == 0
    assert "round 2, turn 2 of" in capfd.readouterr().err
    survey = json.loads(Path("run/survey.json").read_text(encoding="utf-8"))
    assert [(first, last) for first, last, _ in survey["blocks"]] == [([0], [14]), ([15], [15])]
