"""Two groups, used in different orders."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
tensor_parallel = dist.new_group([0, 1], group_desc="tensor_parallel")
data_parallel = dist.new_group([0, 1], group_desc="data_parallel")
both = torch.ones(32, device="cuda")
for group in (tensor_parallel, data_parallel):
    dist.all_reduce(both, group=group)
torch.cuda.synchronize()
order = (tensor_parallel, data_parallel) if rank == 0 else (data_parallel, tensor_parallel)
for group in order:
    dist.all_reduce(both, group=group)  # waits
    torch.cuda.synchronize()
dist.destroy_process_group()
