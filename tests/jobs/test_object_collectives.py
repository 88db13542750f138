"""Pickled objects arrive at other ranks up to a limit on their size; larger ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.parallel_launch import maya_torchrun

PROGRAM = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
size = int(sys.argv[1])


def of(owner):
    return {"owner": owner, "bytes": bytes([owner + 1]) * size}


gathered = [None] * ranks
dist.all_gather_object(gathered, of(rank))
assert gathered == [of(owner) for owner in range(ranks)]
del gathered
shared = [of(7) if rank == 0 else None, "small"]
dist.broadcast_object_list(shared, src=0)
assert shared == [of(7), "small"]
mine = [None]
dist.scatter_object_list(mine, [of(owner) for owner in range(ranks)] if rank == 1 else None, src=1)
assert mine == [of(rank)]
dist.barrier()
dist.destroy_process_group()
print("arrived", flush=True)
"""


def test_large_objects_arrive(tmp_path: Path) -> None:
    """Each of them is larger than any other copy of which the contents are kept."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    run = maya_torchrun(tmp_path, 2, script, str(20 * 10**6), options=("--no-timeline",))
    assert run.exit_code == 0, run.output
    assert run.stdout.count("arrived") == 2


def test_objects_beyond_the_limit_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYA_OBJECT_BYTES", "1000000")
    monkeypatch.setenv("MAYA_KEPT_BYTES", "1000000")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    run = maya_torchrun(tmp_path, 2, script, "600000", options=("--no-timeline",))
    assert run.exit_code == 1
    assert "bytes of pickled objects, but a rank keeps at most 1000000: raise MAYA_OBJECT_BYTES" in run.output
