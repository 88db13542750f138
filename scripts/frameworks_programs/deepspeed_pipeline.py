"""DeepSpeed's pipeline: layers spread over stages, 1F1B, tied embeddings, activation checkpoints.

torchrun --nproc-per-node 4 deepspeed_pipeline.py --stages 2
"""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

WIDTH, WORDS = 256, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def logits(embedding, x):
    return x @ embedding.weight.t()


def loss_of(outputs, labels):
    return nn.functional.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())


def batches():
    while True:
        tokens = torch.randint(0, WORDS, (4, 64))
        yield tokens, tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--local_rank", type=int, default=-1)
    options = parser.parse_args()
    deepspeed.init_distributed()
    layers = [
        TiedLayerSpec("embedding", nn.Embedding, WORDS, WIDTH),
        *(LayerSpec(Block) for _ in range(6)),
        TiedLayerSpec("embedding", nn.Embedding, WORDS, WIDTH, forward_fn=logits),
    ]
    model = PipelineModule(
        layers,
        num_stages=options.stages,
        loss_fn=loss_of,
        activation_checkpoint_interval=1,
        checkpointable_layers=["Block"],
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "steps_per_print": 1,
    }
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    data = batches()
    for _ in range(4):
        loss = engine.train_batch(data)
    engine.save_checkpoint("checkpoint")
    engine.load_checkpoint("checkpoint")
    engine.eval_batch(data)
    print(f"rank {engine.global_rank}: {engine.global_steps} steps, loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
