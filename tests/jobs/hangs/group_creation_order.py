"""Two groups, made in different orders: one rank's first group is the other's second."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
if rank != 1:
    pair = dist.new_group([0, 1], group_desc="pair")
    everybody = dist.new_group([0, 1, 2], group_desc="everybody")
else:
    everybody = dist.new_group([0, 1, 2], group_desc="everybody")
    pair = dist.new_group([0, 1], group_desc="pair")
if rank < 2:
    dist.all_reduce(torch.ones(4, device="cuda"), group=pair)  # stands
dist.all_reduce(torch.ones(4, device="cuda"), group=everybody)
torch.cuda.synchronize()
dist.destroy_process_group()
