"""A pipeline whose last stage receives from the wrong rank."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
activation = torch.ones(16, 128, device="cuda")
if rank > 0:
    source = rank - 1 if rank < ranks - 1 else 0
    dist.recv(activation, source)  # waits
if rank < ranks - 1:
    dist.send(activation, rank + 1)
torch.cuda.synchronize()  # stands
dist.destroy_process_group()
