"""`--stop-after`: a job ends in order after some optimizer steps, and is predicted from these."""

from __future__ import annotations

from pathlib import Path

import pytest

import maya
from maya.trace import RecordKind
from rank_runtime.build import Build

TRAIN = """
import atexit
import sys
import torch
import torch.distributed as dist

def say(text):
    sys.stdout.write(text + "\\n")  # one write: lines of two ranks do not mix


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(lambda: say(f"atexit {rank}"))
try:
    for step in range(1000):
        model(torch.zeros(4, 64, device="cuda")).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        say(f"after step {rank} {step}")
except Exception as error:
    say(f"caught {error}")
finally:
    say(f"finally {rank}")
"""
TWO_OPTIMIZERS = """
import torch

models = [torch.nn.Linear(8, 8).cuda() for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
try:
    for step in range(1000):
        for number, (model, optimizer) in enumerate(zip(models, optimizers)):
            model(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            print(f"after step {number} {step}")
finally:
    print("finally")
"""
EXIT_WHILE_COMPUTING = """
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(8, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if rank == 1:
    time.sleep(1)  # meanwhile rank 0 exits, with its ops queued behind the collective
dist.all_reduce(x)
for _ in range(200):
    x = x * 0.5 + torch.rand(8, device="cuda")
sys.exit()
"""
EXIT_WITH_COLLECTIVES_QUEUED = """
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(8, device="cuda")
for _ in range(100):
    dist.all_reduce(x, async_op=True)
if dist.get_rank() == 1:
    time.sleep(1)  # meanwhile rank 0 exits
dist.all_reduce(x, async_op=True)
sys.exit()
"""


def _script(folder: Path, text: str) -> str:
    (folder / "job.py").write_text(text, encoding="utf-8")
    return "job.py"


def test_a_job_ends_in_order_after_its_steps(build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = maya.launch(_script(tmp_path, TRAIN), cwd=tmp_path, nproc=2, stop_after=3)
    printed = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("maya")]
    expected = [f"after step {rank} {step}" for rank in (0, 1) for step in (0, 1)]
    expected += [f"{text} {rank}" for rank in (0, 1) for text in ("finally", "atexit")]
    assert sorted(filter(None, printed)) == sorted(expected)
    assert (run.exit_code, len(run.steps)) == (0, 3)


def test_optimizers_that_take_turns_make_equally_many_steps(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = maya.launch(_script(tmp_path, TWO_OPTIMIZERS), cwd=tmp_path, stop_after=2)
    lines = capfd.readouterr().out.split("\n")
    assert [line for line in lines if line.startswith("after")] == [
        f"after step {number} {step}" for step in (0, 1) for number in (0, 1)
    ]
    assert "finally" in lines
    assert run.exit_code == 0


def test_a_rank_exits_while_its_ops_are_computed(build: Build, tmp_path: Path) -> None:
    run = maya.launch(_script(tmp_path, EXIT_WHILE_COMPUTING), cwd=tmp_path, nproc=2, quiet=True)
    assert run.exit_code == 0


def test_the_end_of_a_rank_with_queued_collectives_leaves_no_record(build: Build, tmp_path: Path) -> None:
    """Maya keeps torch's flight recorder for hang reports then. Reading it queries events, which depends on this
    machine's speed, so the trace must not show it."""
    run = maya.launch(_script(tmp_path, EXIT_WITH_COLLECTIVES_QUEUED), cwd=tmp_path, nproc=2, quiet=True)
    assert run.exit_code == 0
    kinds = set(maya.trace.read(run.folder / "rank0.trace").records["kind"].tolist())
    assert RecordKind.COLLECTIVE in kinds
    assert RecordKind.SYNCHRONIZE not in kinds
