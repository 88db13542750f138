"""CUDA graphs with collectives, replayed in step, with other calls in between on one rank at a time."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
value = torch.ones(1, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(value)
for step in range(4):
    if (rank + step) % 2:
        graph.replay()
        dist.all_reduce(value)
    else:
        dist.all_reduce(value)
        graph.replay()
torch.cuda.synchronize()
dist.destroy_process_group()
