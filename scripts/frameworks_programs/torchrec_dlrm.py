"""TorchRec: a recommendation model whose embedding tables are sharded by the planner, with a pipelined loop.

torchrun --nproc-per-node 2 torchrec_dlrm.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

KEYS, ROWS, WIDTH, BATCH = ("user", "item", "shop"), 10_000, 64, 32


class Model(nn.Module):
    def __init__(self, device):
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=f"table_{key}", embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=[key])
            for key in KEYS
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=device)
        self.over = nn.Sequential(nn.Linear(WIDTH * len(KEYS) + 13, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, sparse):
        return self.over(torch.cat([dense, self.bags(sparse).values()], dim=1)).squeeze(1)


def batch(device):
    lengths = torch.randint(1, 5, (len(KEYS) * BATCH,))
    values = torch.randint(0, ROWS, (int(lengths.sum()),))
    sparse = KeyedJaggedTensor.from_lengths_sync(list(KEYS), values, lengths)
    labels = torch.randint(0, 2, (BATCH,)).float()
    return torch.randn(BATCH, 13).to(device), sparse.to(device), labels.to(device)


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = Model(torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, model.bags.parameters(), {"lr": 0.02})
    model = DistributedModelParallel(model, device=device)
    dense = {name: p for name, p in model.named_parameters() if "over" in name}
    optimizer = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    loss_of = nn.BCEWithLogitsLoss()
    for step in range(4):
        features, sparse, labels = batch(device)
        loss = loss_of(model(features, sparse), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
