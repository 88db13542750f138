"""A barrier on the CPU that one rank does not come to."""

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
cpu = dist.new_group(backend="gloo", group_desc="checkpoint")
total = torch.ones(4, device="cuda")
dist.all_reduce(total)
if rank != 2:
    dist.barrier(group=cpu)  # stands
dist.all_reduce(total)  # waits
print(total.sum().item())
dist.destroy_process_group()
