"""torch.distributed.checkpoint: a model built on the host and sharded by FSDP2; saved, loaded, saved asynchronously.

torchrun --nproc-per-node 2 dcp_checkpoint.py
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))  # 134 MB, in host memory
    dcp.save({"model": model.state_dict()}, checkpoint_id="host")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(steps):
        for _ in range(steps):
            model(torch.randn(8, 2048, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(3)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id="sharded")
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id="sharded")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    train(1)
    saving = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id="asynchronous")
    train(1)
    saving.result()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(whole, "whole.pt")
    print(f"rank {rank}: saved, {len(whole)} tensors", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
