"""A checkpoint is written in the background, on one rank more slowly, while training goes on."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
folder = Path(tempfile.gettempdir()) / f"checkpoint-{os.environ['MASTER_PORT']}"
model = nn.Linear(16, 16).cuda()
fully_shard(model)
saved = None
for step in range(4):
    model(torch.ones(2, 16, device="cuda")).sum().backward()
    if step == 1:
        saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder)
    if rank == 1:
        time.sleep(0.5)
assert saved is not None
saved.result()
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
if rank == 0:
    shutil.rmtree(folder)
