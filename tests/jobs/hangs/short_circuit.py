"""A collective in an expression that only one rank evaluates to its end."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
loss = torch.ones(1, device="cuda")
verbose = dist.get_rank() == 0
for _step in range(2):
    verbose and dist.all_reduce(loss)  # waits
    print(loss.item())
