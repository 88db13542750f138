"""The last rank's batch is smaller."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
batch = torch.ones(64 if rank < 3 else 48, device="cuda")
dist.all_reduce(batch)  # waits
print(batch.sum().item())
dist.destroy_process_group()
