"""Rank 0 sleeps, the others wait for it."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
if rank == 0:
    time.sleep(4)
total = torch.ones(4, device="cuda")
dist.all_reduce(total)
assert total.sum().item() == 4 * dist.get_world_size()
dist.destroy_process_group()
