"""Jobs in which some ranks are absent: the prediction is that of the job with all ranks."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import maya
from rank_runtime.build import Build

MESH = Path(__file__).parent / "represented_mesh.py"
EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
TINY = ["--layers", "4", "--hidden", "64", "--heads", "8", "--vocabulary", "512", "--sequence", "64", "--steps", "3"]
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
EXCHANGES = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    parts = torch.zeros(100, device="cuda")  # uneven parts are sends and recvs
    dist.all_to_all_single(torch.zeros(100, device="cuda"), parts, [50, 50], [50, 50], group=groups[rank // 2])
    gathered = [torch.zeros(8, device="cuda") for _ in range(world)] if rank == 0 else None
    dist.gather(torch.ones(8, device="cuda"), gathered, dst=0)
    objects = [None] * world if rank == 0 else None
    dist.gather_object({"loss": 1.5}, objects, dst=0)
    dist.all_reduce(torch.ones(8, device="cuda"))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
LATE_GROUPS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    dist.all_reduce(torch.ones(8, device="cuda"))
    optimizer.step()
    if step == 1:
        groups = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    if step > 1:
        dist.all_reduce(torch.zeros(1024, device="cuda"), group=groups[rank // 2])
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


def test_ranks_that_send_to_each_other_may_be_absent(build: Build, tmp_path: Path) -> None:
    """Gather and uneven all-to-all are sends and recvs; rank 0 is the only one that receives what is gathered."""
    script = tmp_path / "exchanges.py"
    script.write_text(EXCHANGES, encoding="utf-8")
    everyone = _predicted(tmp_path, script, represent="all", nproc=4)
    assert not everyone["problems"]
    assert _predicted(tmp_path, script, represent="0,1", nproc=4) == everyone


@pytest.mark.slow
def test_groups_that_are_created_after_the_survey_are_not_compared(build: Build, tmp_path: Path) -> None:
    script = tmp_path / "late_groups.py"
    script.write_text(LATE_GROUPS, encoding="utf-8")
    everyone = _predicted(tmp_path, script, represent="all")
    assert _predicted(tmp_path, script, represent="auto") == everyone
    summary = json.loads((tmp_path / "run-auto" / "summary.json").read_text(encoding="utf-8"))
    assert "saw a mesh of 8" in summary["represented"]["warnings"][0]


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
@pytest.mark.parametrize(
    ("sizes", "seed", "named"),
    [("4x4", 2, "0-7,12-15"), ("2x8", 3, "0,1,3,8,11"), ("32", 5, "0,1,31"), ("2x2x8", 3, ""), ("2x4x4", 4, "")],
)
def test_representatives_of_any_mesh_predict_the_same_as_all_ranks(
    build: Build, tmp_path: Path, sizes: str, seed: int, named: str
) -> None:
    """`named`: one rank of each kind, of meshes of which a survey would run all ranks; empty: a survey finds fewer."""
    ranks = prod(map(int, sizes.split("x")))
    everyone = _predicted(tmp_path, MESH, sizes, str(seed), "log", represent="all", nproc=ranks)
    assert _predicted(tmp_path, MESH, sizes, str(seed), "log", represent=named or "auto", nproc=ranks) == everyone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "represent"),
    [
        ("fsdp2.py", ["--shards", "4"], "0,1"),
        ("tensor_parallel.py", ["--tensor-ranks", "2", "--sequence-parallel", "--loss-parallel"], "0,1,2"),
        ("context_parallel.py", ["--context-ranks", "4", "--rotate", "alltoall"], "0-4"),
        ("pipeline.py", ["--pipeline-ranks", "4", "--layers", "8", "--microbatches", "4", "--batch", "4"], "0-4,7"),
        ("train_gpt.py", [*TINY, "--tensor", "2", "--sequence-parallel", "--data", "fsdp"], "0-2"),
        ("train_gpt.py", [*TINY, "--context", "2", "--tensor", "2"], "0-2,4"),
        ("train_gpt.py", [*TINY, "--pipeline", "2", "--virtual-stages", "2", "--micro-batches", "4"], "0,1,4,5"),
        ("train_gpt.py", [*TINY, "--tensor", "2", "--pipeline", "2", "--micro-batches", "4"], "0-2,4-6"),
    ],
)
def test_examples_predict_the_same_with_one_rank_of_each_kind(
    build: Build, tmp_path: Path, script: str, arguments: list[str], represent: str
) -> None:
    everyone = _predicted(tmp_path, EXAMPLES / script, *arguments, represent="all")
    assert _predicted(tmp_path, EXAMPLES / script, *arguments, represent=represent) == everyone
