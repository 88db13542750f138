"""An error that one rank suppresses jumps over a collective."""

import contextlib
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
config = {"scale": 2} if rank == 0 else {}
with contextlib.suppress(KeyError):
    scaled = torch.ones(16, device="cuda") * config["scale"]
    dist.all_reduce(scaled)  # waits
dist.barrier()  # stands
torch.cuda.synchronize()
