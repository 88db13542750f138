"""Rank 0 broadcasts objects to itself."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
configuration = [{"lr": 0.1}] if rank == 0 else [None]
if rank == 0:
    dist.broadcast_object_list(configuration, src=0)  # waits
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
