"""The receiver has one micro-batch less."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
activation = torch.ones(8 << 20, device="cuda")
for _ in range(3 if rank == 0 else 2):
    if rank == 0:
        dist.send(activation, 1)  # waits
    else:
        dist.recv(activation, 0)
    torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
