"""Only one role of a match statement gathers the results."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
role = "trainer" if dist.get_rank() == 0 else "evaluator"
scores = torch.ones(4, device="cuda")
match role:
    case "trainer":
        gathered = torch.zeros(8, device="cuda")
        dist.all_gather_into_tensor(gathered, scores)  # waits
        print(gathered.sum().item())  # stands
    case "evaluator":
        print(scores.sum().item())
