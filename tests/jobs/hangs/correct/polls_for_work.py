"""The ranks poll asynchronous work and a counter in the store instead of waiting."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.distributed_c10d._get_default_store()
value = torch.ones(4, device="cuda")
if rank == 1:
    time.sleep(3)
work = dist.all_reduce(value, async_op=True)
while not work.is_completed():
    time.sleep(0.05)
store.add("arrived", 1)
while store.add("arrived", 0) < dist.get_world_size():
    time.sleep(0.05)
torch.cuda.synchronize()
dist.destroy_process_group()
