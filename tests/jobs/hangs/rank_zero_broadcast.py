"""Only rank 0 calls a collective."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
weights = torch.ones(256, 256, device="cuda")
dist.broadcast(weights, src=0)
if rank == 0:
    dist.all_reduce(weights)  # waits
    torch.cuda.synchronize()  # stands
print("checkpoint", rank)
dist.destroy_process_group()
