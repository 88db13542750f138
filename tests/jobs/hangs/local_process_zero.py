"""The first process of each node reports, and all are needed for it."""

import os

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)


def is_local_process_zero() -> bool:
    return int(os.environ["LOCAL_RANK"]) == 0


dist.barrier()
if is_local_process_zero():
    count = torch.ones(2, device="cuda")
    dist.all_reduce(count)  # waits
    print(count.tolist())
torch.cuda.synchronize()
dist.destroy_process_group()
