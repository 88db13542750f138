"""Accelerate: a classifier on random data, with accumulation, gathered metrics, tracking, and a checkpoint.

accelerate launch --num_processes 2 accelerate_train.py [--fsdp]
"""

import argparse

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    options = parser.parse_args()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True) if options.fsdp else None
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, fsdp_plugin=plugin)
    set_seed(1)
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(2):
        model.train()
        for features, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(features), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = total = 0
        for features, labels in loader:
            with torch.no_grad():
                guesses = model(features).argmax(-1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            right, total = right + int((guesses == labels).sum()), total + len(labels)
        accelerator.print(f"epoch {epoch}: {right} of {total} right, loss {loss.item():.3f}")
        accelerator.save_state(f"state-{epoch}")
    accelerator.load_state("state-1")
    accelerator.save_model(model, "model")
    accelerator.end_training()


if __name__ == "__main__":
    main()
