"""The ranks disagree about the epoch, and so about the key that they wait for."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.distributed_c10d._get_default_store()
epoch = 3 if rank == 0 else 4
dist.barrier()
store.get(f"epoch-{epoch}")  # stands
dist.destroy_process_group()
