"""Only the main rank registers a hook that logs an averaged norm."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


def log_norm(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
    norm = output.norm()
    dist.all_reduce(norm)  # waits
    print("norm", norm.item())  # stands


model = torch.nn.Linear(8, 8).cuda()
if dist.get_rank() == 0:
    model.register_forward_hook(log_norm)
for _step in range(2):
    model(torch.ones(4, 8, device="cuda"))
    torch.cuda.synchronize()
dist.barrier()
torch.cuda.synchronize()
