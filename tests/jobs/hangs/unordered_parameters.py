"""The parameters are reduced in the order of a set, which differs between ranks."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
sizes = {"embedding": 128, "attention": 48, "head": 64}
names = set(sizes)
order = sorted(names, reverse=dist.get_rank() == 1)  # what a set may do under another PYTHONHASHSEED
for name in order:
    dist.all_reduce(torch.ones(sizes[name], device="cuda"))  # waits
torch.cuda.synchronize()
