"""One rank has no validation data and returns before the collective."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gloo = dist.new_group(backend="gloo")


def validate(samples: int) -> float:
    if samples == 0:
        return 0.0
    score = torch.ones(1, device="cuda") * samples
    dist.all_reduce(score)  # waits
    return float(score)


def main() -> None:
    samples = 0 if rank == 1 else 16
    print(validate(samples))
    dist.barrier(gloo)  # stands


main()
dist.destroy_process_group()
