"""The ranks of a node download in turns, each with a file lock of its own time; then they meet."""

import fcntl
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
path = Path(tempfile.gettempdir()) / f"download-{os.environ['MASTER_PORT']}.lock"
with path.open("w", encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(1.5)
    fcntl.flock(file, fcntl.LOCK_UN)
dist.barrier()
torch.cuda.synchronize()
if rank == 0:
    path.unlink()
dist.destroy_process_group()
