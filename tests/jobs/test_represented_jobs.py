"""Jobs in which some ranks are absent: the prediction is that of the job with all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import maya
from rank_runtime.build import Build

MESH = Path(__file__).parent / "represented_mesh.py"
UNEVEN = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
batch = 32 if rank < world - 1 else 8  # the last rank gets the rest of the data
for step in range(4):
    model(torch.zeros(batch, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step == 3:
        print("evaluated", model(torch.zeros(512, 64, device="cuda")).sum().item())
dist.destroy_process_group()
"""
FAILS = """
import torch.distributed as dist

dist.init_process_group("nccl")
dist.new_group([0, 1])
if dist.get_rank() == 3:
    raise RuntimeError("rank 3 has no data")
dist.barrier()
"""


def _predicted(folder: Path, script: Path, *arguments: str, represent: str, nproc: int = 8) -> dict[str, Any]:
    run = maya.launch(
        str(script), list(arguments), nproc=nproc, represent=represent, cwd=folder, out=f"run-{represent}", quiet=True
    )
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    prediction: dict[str, Any] = summary["prediction"]
    return prediction


def test_named_representatives_predict_the_same_as_all_ranks(build: Build, tmp_path: Path) -> None:
    """A pipeline of two stages, on two dimensions of which the trace does not depend."""
    everyone = _predicted(tmp_path, MESH, "2x2x2", "27", represent="all")
    assert _predicted(tmp_path, MESH, "2x2x2", "27", represent="0,4") == everyone


def test_representatives_are_found(build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 evaluates after the steps that the survey compares; the last rank has a smaller batch."""
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN, encoding="utf-8")
    everyone = _predicted(tmp_path, script, represent="all")
    assert _predicted(tmp_path, script, represent="auto") == everyone
    survey = json.loads((tmp_path / "run-auto" / "survey.json").read_text(encoding="utf-8"))
    assert survey["mesh"] == [8]
    assert [(first, last) for first, last, _ in survey["blocks"]] == [([0], [6]), ([7], [7])]
    assert not (tmp_path / "run-auto" / "survey").exists()


def test_a_survey_in_which_a_rank_fails_shows_its_error(build: Build, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS, encoding="utf-8")
    with pytest.raises(maya.LaunchError) as caught:
        maya.launch(str(script), nproc=4, represent="0,3", cwd=tmp_path, quiet=True)
    assert caught.value.exit_code == 1
    assert "rank 3 has no data" in caught.value.output


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "seed"), [("2x2x4", 1), ("4x4", 2), ("2x8", 3), ("16", 4), ("2x2x2x2", 5)])
def test_representatives_of_any_mesh_predict_the_same_as_all_ranks(
    build: Build, tmp_path: Path, sizes: str, seed: int
) -> None:
    everyone = _predicted(tmp_path, MESH, sizes, str(seed), "log", represent="all", nproc=16)
    assert _predicted(tmp_path, MESH, sizes, str(seed), "log", represent="auto", nproc=16) == everyone
