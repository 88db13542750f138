"""Lightning Fabric: a training loop of one's own by DDP or FSDP, with a checkpoint that is loaded again.

torchrun --nproc-per-node 2 lightning_fabric.py [ddp|fsdp]
"""

import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(strategy):
    fabric = Fabric(accelerator="gpu", devices=2, strategy=strategy, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(1)
    with fabric.init_module():
        model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    for epoch in range(2):
        for features, labels in loader:
            with fabric.no_backward_sync(model, enabled=state["step"] % 2 == 0):
                loss = nn.functional.cross_entropy(model(features), labels)
                fabric.backward(loss)
            if state["step"] % 2:
                if strategy == "ddp":
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            state["step"] += 1
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
        fabric.print(f"epoch {epoch}: loss {mean.item():.4f}")
    fabric.save("checkpoint", state)
    rest = fabric.load("checkpoint", state)
    fabric.print(f"loaded at step {state['step']}, {len(rest)} other entries")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ddp")
