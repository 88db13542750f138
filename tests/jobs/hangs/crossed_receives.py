"""Two ranks both receive first."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
peer = rank ^ 1
mine, theirs = torch.ones(1 << 10, device="cuda"), torch.empty(1 << 10, device="cuda")
dist.barrier()
dist.recv(theirs, peer)  # waits
dist.send(mine, peer)
print(theirs.sum().item())
dist.destroy_process_group()
