"""A pipeline whose stages do not agree on the size of an activation. The sender does not notice, and goes on."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.barrier()
if rank == 0:
    dist.send(torch.ones(8, device="cuda"), 1)  # waits
else:
    dist.recv(torch.empty(6, device="cuda"), 0)  # waits too
loss = torch.ones(1, device="cuda")
dist.all_reduce(loss)
print(loss.item())  # stands
dist.destroy_process_group()
