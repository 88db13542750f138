"""DeepSpeed's mixture of experts: expert parallel, with and without dropping of tokens.

torchrun --nproc-per-node 4 deepspeed_moe.py --experts 8 --top 2
"""

import argparse

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

WIDTH = 256


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(1000, WIDTH)
        expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.experts = nn.ModuleList(
            MoE(
                WIDTH,
                expert,
                num_experts=options.experts,
                ep_size=options.parallel,
                k=options.top,
                drop_tokens=not options.keep,
                use_residual=options.residual,
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens):
        x, auxiliary = self.embedding(tokens), 0.0
        for experts in self.experts:
            mixed, loss, _ = experts(x)
            x, auxiliary = x + mixed, auxiliary + loss
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.flatten())
        return loss + 0.01 * auxiliary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="drop no tokens")
    parser.add_argument("--residual", action="store_true")
    parser.add_argument("--local_rank", type=int, default=-1)
    options = parser.parse_args()
    deepspeed.init_distributed()
    model = Model(options)
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 1,
    }
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(4):
        tokens = torch.randint(0, 1000, (4, 128), device=engine.device)
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("checkpoint", tag="last")
    print(f"rank {engine.global_rank}: {engine.global_steps} steps, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
