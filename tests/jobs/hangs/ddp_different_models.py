"""One rank has a larger vocabulary."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = nn.Embedding(1000 if rank == 0 else 1008, 16).cuda()
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)  # waits
torch.cuda.synchronize()
dist.destroy_process_group()
