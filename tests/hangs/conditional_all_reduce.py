"""Rank 1 leaves out a collective because of its own data."""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    total = torch.ones(1024, device="cuda")
    dist.all_reduce(total)
    for step in range(3):
        loss = torch.tensor(float(rank + step), device="cuda")
        if not (rank == 1 and step == 2):
            dist.all_reduce(loss)  # waits
        dist.barrier()
    print(total.sum().item())
    dist.destroy_process_group()


main()
