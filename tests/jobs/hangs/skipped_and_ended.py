"""Rank 1 leaves out one reduction of the loss: its next barrier has the same size. It ends one barrier early."""

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
