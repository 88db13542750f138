"""Every rank shows itself one GPU, before it uses CUDA, and calls that cuda:0."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
assert torch.cuda.device_count() == 1
assert torch.cuda.get_device_properties(0).pci_bus_id == 1 + dist.get_rank()
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [2.0] * 4
dist.destroy_process_group()
