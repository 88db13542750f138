"""Rank 0 holds a file lock while it waits for a rank that waits for the lock."""

import fcntl
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
path = Path(tempfile.gettempdir()) / f"shared-{os.environ['MASTER_PORT']}.lock"
with path.open("a", encoding="utf-8") as file:
    dist.barrier()
    if rank == 0:
        fcntl.flock(file, fcntl.LOCK_EX)
        path.unlink()
    dist.barrier()
    torch.cuda.synchronize()
    if rank == 1:
        fcntl.flock(file, fcntl.LOCK_EX)  # stands
    dist.all_reduce(torch.ones(1, device="cuda"))  # waits
    torch.cuda.synchronize()
