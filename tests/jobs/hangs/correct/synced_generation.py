"""Texts of different lengths: a rank that is done goes on with padding until all are."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
done, tokens = False, 0
while True:
    tokens += 1
    logits = torch.ones(8, device="cuda")
    dist.all_reduce(logits)
    done = done or tokens == 3 + 4 * rank
    running = torch.tensor(0.0 if done else 1.0, device="cuda")
    dist.all_reduce(running)
    if running.item() == 0:
        break
torch.cuda.synchronize()
dist.destroy_process_group()
