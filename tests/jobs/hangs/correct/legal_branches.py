"""Matching calls from different lines, in different orders and frames on each rank: all legal, none out of step."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
value = torch.ones(1, device="cuda")


def log() -> None:
    dist.all_reduce(value)


for step in range(6):
    if rank == 0:
        dist.all_reduce(value)
        log()
    elif rank == 1 and step % 2:
        log()
        dist.barrier()
    else:
        dist.barrier()
        dist.all_reduce(value)
    dist.all_reduce(value)
torch.cuda.synchronize()
dist.destroy_process_group()
