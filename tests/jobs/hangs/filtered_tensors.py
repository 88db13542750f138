"""A comprehension leaves out tensors without rows, which only one rank has."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rows = [4, 4, 4] if dist.get_rank() == 0 else [4, 0, 4]
handles = [dist.all_reduce(torch.ones(count, device="cuda"), async_op=True) for count in rows if count > 0]  # waits
for handle in handles:
    handle.wait()
torch.cuda.synchronize()
dist.barrier()  # stands
torch.cuda.synchronize()
