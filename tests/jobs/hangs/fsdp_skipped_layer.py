"""Layers are dropped at random, and the ranks' dice differ."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
first, second = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
fully_shard(first)
fully_shard(second)
hidden = first(torch.ones(4, 64, device="cuda"))
if rank != 1:
    hidden = second(hidden)  # waits
print(hidden.sum().item())
dist.destroy_process_group()
