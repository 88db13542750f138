"""A collective in a thread that only one rank starts, and a main thread that joins it."""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()


def log_norms() -> None:
    norms = torch.ones(7, device="cuda")
    dist.all_reduce(norms)  # waits
    norms.sum().item()


if rank == 0:
    logger = threading.Thread(target=log_norms)
    logger.start()
    logger.join()  # stands
