"""Rank 1 leaves out a collective, and everything that follows is off by one: a barrier meets an all-reduce of the same
size, nobody notices, and the last collective has no partner."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
for step in range(3):
    loss = torch.ones(1, device="cuda")
    if rank != 1 or step != 1:
        dist.all_reduce(loss)  # diverges
    dist.barrier()  # waits
if rank == 1:
    dist.distributed_c10d._get_default_store().wait(["evaluated"])  # stands
dist.destroy_process_group()
