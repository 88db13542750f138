"""A rank skips a batch that has no finite loss, and the gradients' all-reduce with it."""

import math
import os

import torch
import torch.distributed as dist

LOSSES = {0: [0.5, 0.4, 0.3], 1: [0.5, math.nan, 0.3]}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()


def train() -> None:
    gradients = torch.ones(64, device="cuda")
    for loss in LOSSES[rank]:
        if not math.isfinite(loss):
            continue
        dist.all_reduce(gradients)  # waits
        gradients.sum().item()


train()
dist.barrier()  # stands
torch.cuda.synchronize()
