"""A pipeline by hand whose stages disagree about the number of micro-batches."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def run_stage(micro_batches: int) -> None:
    activation = torch.ones(2 << 20, device="cuda")
    for _ in range(micro_batches):
        if rank == 0:
            dist.send(activation, 1)
        else:
            dist.recv(activation, 0)  # waits
        torch.cuda.synchronize()
    dist.barrier()


run_stage(micro_batches=2 if rank == 0 else 4)
dist.destroy_process_group()
