"""One rank runs without mixed precision."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gradient = torch.ones(512, device="cuda", dtype=torch.float32 if rank == 1 else torch.bfloat16)
dist.all_reduce(gradient)  # waits
torch.cuda.synchronize()
dist.destroy_process_group()
