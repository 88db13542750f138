"""A rank waits for a key that nobody sets, the others wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.get("model/ready")  # stands
dist.barrier()  # waits
dist.destroy_process_group()
