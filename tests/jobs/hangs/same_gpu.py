"""All ranks use the current device, and nobody has said which that is."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
x = torch.ones(4, device="cuda")
try:
    dist.all_reduce(x)  # waits
except dist.DistBackendError as error:
    print(f"raised: {error}")
    raise
