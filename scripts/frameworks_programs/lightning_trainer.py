"""Lightning's Trainer: a transformer on random tokens, with validation, checkpoints, early stopping, and a second fit.

torchrun --nproc-per-node 2 lightning_trainer.py [ddp|fsdp|deepspeed_stage_2] [--nodes N]
"""

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self, width=256, layers=4, words=1000):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def loss_of(self, batch):
        (tokens,) = batch
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())

    def training_step(self, batch, index):
        loss = self.loss_of(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader(rows, **options):
    tokens = torch.randint(0, 1000, (rows, 64), generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(tokens), batch_size=8, num_workers=1, **options)


def trainer_of(strategy, epochs):
    checkpoint = ModelCheckpoint("checkpoints", monitor="val_loss", save_last=True, save_top_k=2)
    callbacks = [
        checkpoint,
        EarlyStopping("val_loss", patience=20),
        LearningRateMonitor(),
        DeviceStatsMonitor(),
    ]
    return L.Trainer(
        accelerator="gpu",
        devices="auto" if strategy == "auto" else 2,
        strategy=strategy,
        precision="bf16-mixed" if strategy != "fsdp" else "bf16-true",
        max_epochs=epochs,
        limit_train_batches=6,
        gradient_clip_val=None if strategy == "fsdp" else 1.0,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        enable_progress_bar=False,
        callbacks=callbacks,
        logger=CSVLogger("logs"),
    )


def main(strategy):
    L.seed_everything(1)
    trainer = trainer_of(strategy, 2)
    trainer.fit(Model(), loader(256, shuffle=True), loader(32))
    best = trainer.checkpoint_callback.last_model_path
    again = trainer_of(strategy, 3)
    again.fit(Model(), loader(256, shuffle=True), loader(32), ckpt_path=best)
    again.validate(Model(), loader(32), ckpt_path=best)
    print(f"rank {again.global_rank}: epoch {again.current_epoch}, step {again.global_step}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ddp")
