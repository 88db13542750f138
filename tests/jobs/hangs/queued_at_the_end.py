"""Rank 1 ends while its GPU waits for a message that rank 0 never sends; what rank 0 waits for is queued behind it."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
received = torch.zeros(8, device="cuda")
dist.all_reduce(received)
if rank == 1:
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, 0)])  # waits
dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)  # queued
if rank == 0:
    torch.cuda.synchronize()  # stands
