"""Queues of different lengths, where each rank goes on with empty batches until all queues are empty."""

import os
from collections import deque

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
documents = deque(f"document {number}" for number in range(7) if number % 2 == rank)
while True:
    left = torch.tensor(float(len(documents)), device="cuda")
    dist.all_reduce(left)
    if left.item() == 0:
        break
    tokens = torch.zeros(16, device="cuda")
    if documents:
        tokens += len(documents.popleft())
    dist.all_reduce(tokens)
    tokens.sum().item()
print("done", rank)
dist.destroy_process_group()
