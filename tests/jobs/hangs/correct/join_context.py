"""Uneven inputs, made even by torch's Join."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Linear(8, 8).cuda())
with Join([model]):
    for _ in range(2 + 2 * rank):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
torch.cuda.synchronize()
dist.destroy_process_group()
