"""Ranks 1 to 3 end, each in another way, with collectives in their streams to which rank 0 comes later."""

import os
import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
gathered, own = torch.empty(4096, device="cuda"), torch.ones(1024, device="cuda")
for _ in range(30):
    dist.all_gather_into_tensor(gathered, own)
    if rank == 0:
        torch.cuda.synchronize()
        time.sleep(0.01)
if rank == 0:
    assert gathered.tolist() == [1.0] * 4096
if rank == 2:
    sys.exit(0)
if rank == 3:
    os._exit(0)
