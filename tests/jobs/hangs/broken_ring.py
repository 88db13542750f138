"""A ring in which one rank passes nothing on."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
block, incoming = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
operations = [dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)]
if rank != 2:
    operations.append(dist.P2POp(dist.isend, block, (rank + 1) % ranks))
for work in dist.batch_isend_irecv(operations):  # waits
    work.wait()
torch.cuda.synchronize()  # stands
dist.destroy_process_group()
