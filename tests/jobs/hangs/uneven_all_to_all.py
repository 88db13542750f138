"""Experts of different capacity: what one rank sends is not what the other expects."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
tokens = torch.ones(12, device="cuda")
expected = [6, 6] if rank == 0 else [8, 6]
received = torch.empty(sum(expected), device="cuda")
dist.all_to_all_single(received, tokens, expected, [6, 6])  # waits
torch.cuda.synchronize()
dist.destroy_process_group()
