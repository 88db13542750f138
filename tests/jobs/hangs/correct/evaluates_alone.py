"""Rank 0 evaluates for two minutes of the cluster's time, and some seconds of this machine's; the others wait in a
barrier."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
if rank == 0:
    weights = torch.ones(16384, 16384, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        for _ in range(500):
            torch.mm(weights, weights)
        torch.cuda.synchronize()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        sum(range(10000))
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
