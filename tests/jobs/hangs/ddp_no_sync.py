"""Gradients are accumulated for different numbers of steps."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Linear(32, 8).cuda())
accumulate = 2 if rank == 0 else 4
for step in range(1, 5):
    with model.no_sync() if step % accumulate else contextlib.nullcontext():
        loss = model(torch.ones(4, 32, device="cuda")).sum()  # waits
        loss.backward()
    loss.item()
torch.cuda.synchronize()
dist.destroy_process_group()
