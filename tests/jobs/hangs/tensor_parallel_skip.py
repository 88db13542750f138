"""One rank of a tensor-parallel group leaves out the loss."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
tensor_parallel = mesh.get_group("tp")
hidden = torch.ones(8, 64, device="cuda")
dist.all_reduce(hidden, group=tensor_parallel)
if rank != 3:
    dist.all_reduce(hidden[0], group=tensor_parallel)  # waits
dist.all_reduce(hidden, group=mesh.get_group("dp"))
torch.cuda.synchronize()  # stands
dist.destroy_process_group()
