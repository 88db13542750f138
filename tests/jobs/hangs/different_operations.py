"""Two collectives of one group in different orders."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
metrics = torch.ones(8, device="cuda")
if rank == 0:
    dist.broadcast(metrics, 0)  # waits
    dist.all_reduce(metrics)
else:
    dist.all_reduce(metrics)  # waits too
    dist.broadcast(metrics, 0)
torch.cuda.synchronize()
dist.destroy_process_group()
