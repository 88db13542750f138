"""Rank 0 writes a file, which takes a while; the others look for it now and then."""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
path = Path(tempfile.gettempdir()) / f"vocabulary-{os.environ['MASTER_PORT']}"
if rank == 0:
    time.sleep(3)
    path.touch()
while not path.exists():
    time.sleep(0.2)
dist.barrier()
torch.cuda.synchronize()
if rank == 0:
    path.unlink()
dist.destroy_process_group()
