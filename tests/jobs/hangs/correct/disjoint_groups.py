"""Groups that have nothing to do with each other make different numbers of calls, at different speeds."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
group = groups[rank // 2]
value = torch.ones(16, device="cuda")
for _ in range(2 if rank < 2 else 7):
    dist.all_reduce(value, group=group)
    torch.cuda.synchronize()
    time.sleep(0.5)
dist.barrier()
dist.destroy_process_group()
