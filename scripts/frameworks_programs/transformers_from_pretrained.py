"""Save a model of random weights, load it again in every rank with from_pretrained, and train it by DDP.

torchrun --nproc-per-node 2 transformers_from_pretrained.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    if rank == 0:
        config = AutoConfig.for_model(
            "llama", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
        )
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained("model")
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(4):
        tokens = torch.randint(0, 32000, (2, 256), device=device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        model.module.save_pretrained("trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
