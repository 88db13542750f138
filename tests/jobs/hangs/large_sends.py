"""Both ranks send more than NCCL buffers, and receive afterwards."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mine, theirs = torch.ones(4 << 20, device="cuda"), torch.empty(4 << 20, device="cuda")
dist.send(mine, 1 - rank)  # waits
dist.recv(theirs, 1 - rank)
torch.cuda.synchronize()
dist.destroy_process_group()
