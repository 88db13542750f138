"""Each rank works until its own queue is empty, and the queues have different lengths."""

import os
from collections import deque

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
documents = deque(f"document {number}" for number in range(7) if number % 2 == rank)
while documents:
    tokens = torch.ones(len(documents.popleft()), device="cuda")
    dist.all_reduce(tokens)  # waits
    tokens.sum().item()
dist.barrier()  # stands
torch.cuda.synchronize()
