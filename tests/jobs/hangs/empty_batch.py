"""A batch without samples is left out by the rank that has it; nothing in the condition speaks of ranks."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gloo = dist.new_group(backend="gloo")


def train(batch: list[int]) -> None:
    if len(batch) > 0:
        gradient = torch.ones(64, device="cuda") * sum(batch)
        dist.all_reduce(gradient)  # waits
        print(gradient[0].item())
    dist.barrier(gloo)  # stands


train([] if rank == 2 else [1, 2, 3])
dist.destroy_process_group()
