"""The ranks agree by all-reduce when to stop; one of them is done with its part long before."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
for step in range(100):
    wants_to_stop = torch.tensor(1.0 if rank == 1 or step == 5 else 0.0, device="cuda")
    dist.all_reduce(wants_to_stop)
    if wants_to_stop.item() == dist.get_world_size():
        break
    time.sleep(0.3 * (rank + 1))
assert step == 5
dist.destroy_process_group()
