"""DeepSpeed's engine: a GPT-like model by ZeRO 0 to 3, with or without offload to the host, saved and loaded again.

deepspeed --num_gpus 2 deepspeed_engine.py --stage 3 [--offload] [--nvme]
"""

import argparse

import deepspeed
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (p.view(batch, length, -1, 64).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, width=512, layers=4, words=1000):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def config_of(options):
    zero = {"stage": options.stage}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if options.stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": not options.offload}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": True,
        "flops_profiler": {"enabled": options.stage < 3, "profile_step": 2},
        "steps_per_print": 2,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--local_rank", type=int, default=-1)
    options = parser.parse_args()
    deepspeed.init_distributed()
    config = config_of(options)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=options.stage == 3):
        model = Model()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def train(steps):
        for _ in range(2 * steps):
            tokens = torch.randint(0, 1000, (4, 128), device=engine.device)
            loss = engine(tokens, tokens)
            engine.backward(loss)
            engine.step()

    train(4)
    engine.save_checkpoint("checkpoint", tag="four")
    path, _ = engine.load_checkpoint("checkpoint", tag="four")
    train(1)
    print(f"rank {engine.global_rank}: {engine.global_steps} steps, loaded {path is not None}", flush=True)


if __name__ == "__main__":
    main()
