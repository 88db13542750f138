"""Everybody broadcasts its own."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
seed = torch.tensor([rank], device="cuda")
dist.broadcast(seed, src=rank)  # waits
print(seed.item())
dist.destroy_process_group()
