"""Each role has a group and calls of its own, at its own pace; one of them is long idle."""

import os
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
role = "actor" if rank < 2 else "learner"
groups = {"actor": dist.new_group([0, 1]), "learner": dist.new_group([2, 3])}
value = torch.ones(8, device="cuda")
match role:
    case "actor":
        for _step in range(5):
            dist.all_reduce(value, group=groups[role])
            value.sum().item()
            time.sleep(1 if rank == 0 else 0)
    case "learner":
        dist.broadcast(value, 2, group=groups[role])
        rank == 2 and print("learned", value.sum().item())
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
