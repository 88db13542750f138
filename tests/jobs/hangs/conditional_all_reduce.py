"""Rank 1 leaves out a collective because of its own data, and evaluates with the others of another group."""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    evaluation = dist.new_group(list(range(dist.get_world_size())), group_desc="evaluation")
    for step in range(3):
        loss = torch.tensor(float(rank + step), device="cuda")
        if not (rank == 1 and step == 2):
            dist.all_reduce(loss)  # waits
        loss.item()
    dist.all_reduce(torch.zeros(2, device="cuda"), group=evaluation)
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
