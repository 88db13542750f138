"""Ranks 0 and 1 wait for each other while the others compute."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
left = dist.new_group([0, 1], group_desc="left")
right = dist.new_group([2, 3], group_desc="right")
mine = left if rank < 2 else right
value = torch.ones(8, device="cuda")
dist.all_reduce(value, group=mine)
torch.cuda.synchronize()
if rank == 0:
    dist.recv(value, 1, group=left)  # waits
if rank == 1:
    dist.recv(value, 0, group=left)  # waits too
if rank >= 2:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        sum(range(100000))
torch.cuda.synchronize()
