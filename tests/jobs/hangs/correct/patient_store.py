"""A rank looks into the store again and again until another, which takes its time, has put something there."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    time.sleep(4)
    store.set("ready", "1")
else:
    while True:
        try:
            store.wait(["ready"], timedelta(seconds=1))
            break
        except dist.DistStoreError:
            continue
dist.barrier()
dist.destroy_process_group()
