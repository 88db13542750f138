"""An exception on one rank is logged and forgotten, and with it a collective."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def evaluate(step: int) -> float:
    if rank == 2 and step == 1:
        raise ValueError("a malformed sample")
    score = torch.ones(1, device="cuda")
    dist.all_reduce(score)  # waits
    return float(score)


for step in range(2):
    try:
        evaluate(step)
    except ValueError as error:
        print("skipped:", error)
