"""Composer: a classifier by its Trainer, by DDP or FSDP, with algorithms, evaluation and checkpoints.

composer -n 2 composer_train.py [ddp|fsdp]
"""

import os
import sys

import torch
from composer import Trainer
from composer.algorithms import GradientClipping, LabelSmoothing
from composer.callbacks import SpeedMonitor
from composer.models import ComposerClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, distributed


def loader(rows):
    data = TensorDataset(torch.randn(rows, 64), torch.randint(0, 10, (rows,)))
    sampler = distributed.DistributedSampler(data) if torch.distributed.is_initialized() else None
    return DataLoader(data, batch_size=16, sampler=sampler)


def main(kind):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = ComposerClassifier(nn.Sequential(*layers), num_classes=10)
    trainer = Trainer(
        model=model,
        train_dataloader=loader(256),
        eval_dataloader=loader(64),
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        max_duration="2ep",
        precision="amp_bf16",
        device="gpu",
        device_train_microbatch_size=8,
        parallelism_config={"fsdp": {"sharding_strategy": "FULL_SHARD"}} if kind == "fsdp" else None,
        algorithms=[LabelSmoothing(0.1), GradientClipping("norm", 1.0)],
        callbacks=[SpeedMonitor()],
        save_folder="checkpoints",
        progress_bar=False,
    )
    trainer.fit()
    print(f"{trainer.state.timestamp.batch} batches", flush=True)
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ddp")
