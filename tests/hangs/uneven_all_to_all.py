"""Experts of different capacity: what one rank sends is not what the other expects."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
tokens = torch.ones(12, device="cuda")
received = torch.empty(12, device="cuda")
dist.all_to_all_single(received, tokens, [6, 6], [6, 6] if rank == 0 else [4, 8])  # waits
torch.cuda.synchronize()
dist.destroy_process_group()
