"""One rank has nothing left to do and ends; the other goes on alone."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
if rank == 0:
    time.sleep(3)
    print("written")
