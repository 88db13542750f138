"""Sampling with a sharded model: every token is a collective, and the ranks end their texts at different ones."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
gloo = dist.new_group(backend="gloo")
END = 2


def generate(prompt: list[int], longest: int) -> list[int]:
    tokens = list(prompt)
    last = tokens[-1]
    while last != END and len(tokens) < longest:
        logits = torch.ones(8, device="cuda")
        dist.all_reduce(logits)  # waits
        torch.cuda.synchronize()
        last = END if rank == 1 and len(tokens) == 3 else 5
        tokens.append(last)
    dist.barrier(gloo)  # stands
    return tokens


generate([7], 6)
dist.destroy_process_group()
