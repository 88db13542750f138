"""Two loaders are read side by side, and the shorter one ends the epoch; its length differs between ranks."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
labelled, unlabelled = list(range(6)), list(range(3 + rank))
for first, second in zip(labelled, unlabelled, strict=False):
    batch = torch.full((8,), float(first + second), device="cuda")
    dist.all_reduce(batch)  # waits
    batch.sum().item()
dist.barrier()  # stands
torch.cuda.synchronize()
