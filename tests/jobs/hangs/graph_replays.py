"""A captured reduction is replayed once less on rank 1; a barrier takes its place."""

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
    dist.all_reduce(value)  # diverges
for step in range(3):
    if rank != 1 or step != 1:
        graph.replay()
    dist.barrier()  # waits
torch.cuda.synchronize()
dist.distributed_c10d._get_default_store().wait(["finished"])
