"""A decorator runs a function on rank 0 only, and the function calls a collective."""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def rank_zero_only(function: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(function)
    def wrapped() -> None:
        if dist.get_rank() == 0:
            function()

    return wrapped


@rank_zero_only
def save() -> None:
    shards = [torch.empty(16, device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(shards, torch.ones(16, device="cuda"))  # waits
    print(torch.cat(shards).sum().item())


save()
dist.destroy_process_group()
