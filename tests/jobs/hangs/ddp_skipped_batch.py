"""One rank skips a batch without labels, and so a backward pass; the others wait for its gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda())
for step in range(4):
    if rank == 1 and step == 3:
        continue
    model(torch.ones(8, 16, device="cuda")).sum().backward()  # waits
    torch.cuda.synchronize()
accuracy = torch.ones(3, device="cuda")
dist.all_reduce(accuracy)  # posted
print(accuracy.sum().item())
dist.destroy_process_group()
