"""One rank wants the maximum, the other the sum."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
norm = torch.ones(1, device="cuda")
dist.all_reduce(norm, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)  # waits
print(norm.item())
dist.destroy_process_group()
