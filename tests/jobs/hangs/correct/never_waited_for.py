"""Asynchronous work that nobody waits for before the others have come, and one receive that is waited for late."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
value = torch.ones(4, device="cuda")
if rank == 0:
    work = dist.all_reduce(value, async_op=True)
    time.sleep(3)
else:
    time.sleep(2)
    work = dist.all_reduce(value, async_op=True)
torch.cuda.synchronize()
