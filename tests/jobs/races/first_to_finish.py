"""Whichever of two reductions is seen to end first decides what a rank calls next. Usually that is the one that was
called first, on all ranks; nothing guarantees it."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
groups = [dist.new_group(), dist.new_group()]
for step in range(8):
    works = [dist.all_reduce(torch.ones(4, device="cuda"), group=group, async_op=True) for group in groups]
    while not any(work.is_completed() for work in works):
        time.sleep(0.001)
    result = torch.ones(8, device="cuda")
    if works[0].is_completed():
        dist.all_reduce(result)
    else:
        print(f"rank {rank} is different in step {step}", flush=True)
        dist.broadcast(result, src=0)
    for work in works:
        work.wait()
    torch.cuda.synchronize()
print("done", rank)
dist.destroy_process_group()
