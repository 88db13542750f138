"""Threads that sleep, poll and wait for ever beside training, on every rank."""

import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)


def beat() -> None:
    while True:
        time.sleep(0.2)


threading.Thread(target=beat, daemon=True).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
for step in range(3):
    if rank == step % 2:
        time.sleep(1.5)
    total = torch.ones(4, device="cuda")
    dist.all_reduce(total)
    assert total.sum().item() == 4 * dist.get_world_size()
dist.destroy_process_group()
