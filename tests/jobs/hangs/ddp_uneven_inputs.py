"""DDP with one batch less on the last rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Linear(32, 8).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.ones(4, 32)] * (4 if rank < ranks - 1 else 3)
for batch in batches:
    loss = model(batch.cuda()).sum()
    loss.backward()  # waits
    optimizer.step()
    optimizer.zero_grad()
    print(rank, loss.item())
torch.cuda.synchronize()
