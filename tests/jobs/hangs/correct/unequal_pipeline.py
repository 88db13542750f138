"""A pipeline whose stages take different times, with more sends under way than receives."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
ranks = dist.get_world_size()
activation = torch.ones(64, device="cuda")
for _ in range(4):
    if rank > 0:
        dist.recv(activation, rank - 1)
        torch.cuda.synchronize()
        time.sleep(0.4 * rank)
    if rank < ranks - 1:
        dist.send(activation, rank + 1)
torch.cuda.synchronize()
dist.destroy_process_group()
