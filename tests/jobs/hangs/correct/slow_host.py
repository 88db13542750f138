"""Rank 0 computes on the host for some seconds, in Python and in a child, while the others wait."""

import subprocess
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
if rank == 0:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        sum(range(10000))
    busy = "import time\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: sum(range(10000))"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
dist.barrier()
dist.destroy_process_group()
