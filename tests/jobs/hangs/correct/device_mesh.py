"""Meshes with dimensions of one rank: many groups are made at once, each with a connection of its own to the store."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
init_device_mesh("cuda", (1, dist.get_world_size(), 1), mesh_dim_names=("pipeline", "data", "tensor"))
dist.destroy_process_group()
