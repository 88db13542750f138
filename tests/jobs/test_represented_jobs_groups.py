"""Jobs with absent ranks: Gloo groups, objects, the store and distributed checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.parallel_launch import maya_torchrun

GROUPS = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
rank, ranks = dist.get_rank(), dist.get_world_size()


def say(*what):
    if rank == 0:
        print(*what, flush=True)


total = torch.tensor([float(rank)])
dist.all_reduce(total)
say("all_reduce", total.tolist())
work = dist.all_gather(parts := [torch.zeros(1) for _ in range(ranks)], torch.tensor([10.0 + rank]), async_op=True)
work.wait()
say("all_gather", torch.cat(parts).tolist(), work.is_completed())
gloo = dist.new_group(backend="gloo")
dist.monitored_barrier(gloo)
for name, group in (("gloo", gloo), ("nccl", None)):
    gathered = [None] * ranks
    dist.all_gather_object(gathered, {"rank": rank, "padding": "x" * rank}, group=group)
    say(name, "all_gather_object", [each["rank"] for each in gathered])
    objects = [("from", rank)]
    dist.broadcast_object_list(objects, src=ranks - 1, group=group)
    say(name, "broadcast_object_list", objects)
    gathered = [None] * ranks if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0, group=group)
    say(name, "gather_object", gathered)
half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
total = torch.ones(1)
dist.all_reduce(total, group=half)
say("split", total.tolist())
store = dist.distributed_c10d._get_default_store()
store.set(f"host{rank}", f"node of {rank}")
if rank == 0:
    say("store", [store.get(f"host{each}").decode() for each in range(ranks)])
own = dist.TCPStore("127.0.0.1", 29500, ranks, rank == 0)
own.set(f"port{rank}", str(8000 + rank))
if rank == 0:
    say("own store", [own.get(f"port{each}").decode() for each in range(ranks)], isinstance(own, dist.TCPStore))
dist.barrier()
dist.destroy_process_group()
"""

EXPECTED = """\
all_reduce [3.0]
all_gather [10.0, 11.0, 11.0, 11.0] True
gloo all_gather_object [0, 1, 1, 1]
gloo broadcast_object_list [('from', 1)]
gloo gather_object [0, 1, 1, 1]
nccl all_gather_object [0, 1, 1, 1]
nccl broadcast_object_list [('from', 1)]
nccl gather_object [0, 1, 1, 1]
split [2.0]
store ['node of 0', 'node of 1', 'node of 1', 'node of 1']
own store ['8000', '8001', '8001', '8001'] True
"""


def test_groups_objects_and_keys_have_the_values_of_stand_ins(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(GROUPS, encoding="utf-8")
    run = maya_torchrun(tmp_path, 4, script, options=("--represent", "0,1", "--no-timeline", "--out", "run"))
    assert run.exit_code == 0, run.output
    assert run.stdout == EXPECTED
    assert "broadcast_object_list: rank 3 is absent" in run.output
    filled = json.loads((tmp_path / "run" / "process_groups.json").read_text(encoding="utf-8"))["filled"]
    assert any("host2 (as " in each for each in filled), filled


CHECKPOINT = """
import os, tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(64, 64).cuda()
fully_shard(model)
model(torch.randn(8, 64, device="cuda")).sum().backward()
replicated = {str(number): torch.full((8192,), float(number), device="cuda") for number in range(8)}
saved = {"model": model.state_dict(), "step": 3, "replicated": replicated}
checkpoint.save(saved, checkpoint_id="saved")
checkpoint.async_save(saved, checkpoint_id="saved_later").result()
unset = {name: torch.full((8192,), -1.0, device="cuda") for name in replicated}
loaded = {"model": model.state_dict(), "step": 0, "replicated": unset}
checkpoint.load(loaded, checkpoint_id="saved")
print("step", loaded["step"], sum(tensor[0].item() >= 0 for tensor in unset.values()), flush=True)
dist.destroy_process_group()
"""


def test_a_checkpoint_of_present_ranks_can_be_saved_and_loaded(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(CHECKPOINT, encoding="utf-8")
    run = maya_torchrun(tmp_path, 4, script, options=("--represent", "0", "--no-timeline", "--out", "run"))
    assert run.exit_code == 0, run.output
    assert "step 3 2" in run.stdout  # of eight replicated tensors, each of four ranks would write two
    filled = json.loads((tmp_path / "run" / "process_groups.json").read_text(encoding="utf-8"))["filled"]
    assert filled == ["checkpoints have the shards of present ranks only"]
