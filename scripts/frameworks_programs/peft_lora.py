"""PEFT: LoRA on a small Llama by DDP; the adapter is saved, loaded into a fresh model, and merged.

torchrun --nproc-per-node 2 peft_lora.py
"""

import os

import torch
import torch.distributed as dist
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM


def fresh():
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4)
    )


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = get_peft_model(fresh(), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    if rank == 0:
        model.print_trainable_parameters()
    model = DistributedDataParallel(model.to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for step in range(4):
        tokens = torch.randint(0, 1000, (4, 128), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        model.module.save_pretrained("adapter")
    dist.barrier()
    merged = PeftModel.from_pretrained(fresh(), "adapter").to(device).merge_and_unload()
    with torch.no_grad():
        merged(input_ids=tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
