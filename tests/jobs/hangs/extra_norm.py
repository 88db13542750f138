"""Rank 0 logs a norm in between: its reduction meets the gradients of the others, which have the same size."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gradient, norm = torch.ones(256, device="cuda"), torch.ones(256, device="cuda")


def log_norm() -> None:
    dist.all_reduce(norm)  # diverges
    print(norm[0].item())


def step(number: int) -> None:
    if rank == 0 and number == 2:
        log_norm()
    dist.all_reduce(gradient)  # waits


for number in range(5):
    step(number)
torch.cuda.synchronize()
dist.distributed_c10d._get_default_store().wait(["finished"])
