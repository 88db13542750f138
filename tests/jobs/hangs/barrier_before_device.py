"""A barrier before the device is set: it uses a GPU of each rank's own, and the next call cuda:0 on all of them."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.barrier()
weights = torch.ones(64, device="cuda")
dist.broadcast(weights, 0)  # waits
weights.sum().item()
