"""One rank sleeps for ever, as far as anybody knows."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
if rank == 1:
    time.sleep(100000)  # stands
dist.all_reduce(torch.ones(3, device="cuda"))  # waits
torch.cuda.synchronize()
