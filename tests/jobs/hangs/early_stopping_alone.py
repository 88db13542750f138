"""Each rank stops by its own loss."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gloo = dist.new_group(backend="gloo")
patience = 1 + rank
for epoch in range(8):
    gradient = torch.ones(32, device="cuda")
    dist.all_reduce(gradient)  # waits
    torch.cuda.synchronize()
    if epoch > patience:
        break
dist.barrier(gloo)  # stands
dist.destroy_process_group()
