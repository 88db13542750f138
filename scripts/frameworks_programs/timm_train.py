"""timm: an image model on random images, with mixed precision, EMA, Mixup, synchronised batch norm and a checkpoint.

torchrun --nproc-per-node 2 timm_train.py resnet50
"""

import os
import sys

import timm
import torch
import torch.distributed as dist
from timm.data import Mixup
from timm.layers import convert_sync_batchnorm
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import CheckpointSaver, ModelEmaV3, NativeScaler, distribute_bn, reduce_tensor
from torch.nn.parallel import DistributedDataParallel


def main(name):
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = timm.create_model(name, num_classes=100).to(device)
    model = convert_sync_batchnorm(model)
    size = model.default_cfg["input_size"][-1]
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    ema, scaler, mixup = ModelEmaV3(model), NativeScaler(), Mixup(mixup_alpha=0.2, num_classes=100)
    parallel = DistributedDataParallel(model, device_ids=[device.index])
    schedule, loss_of = CosineLRScheduler(optimizer, 10), SoftTargetCrossEntropy()
    saver = CheckpointSaver(model, optimizer, model_ema=ema, amp_scaler=scaler) if rank == 0 else None
    for step in range(4):
        images = torch.randn(8, 3, size, size, device=device)
        images, labels = mixup(images, torch.randint(0, 100, (8,), device=device))
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(parallel(images), labels)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        optimizer.zero_grad()
        ema.update(model)
        schedule.step(step)
        mean = reduce_tensor(loss.detach(), dist.get_world_size())
        if rank == 0:
            print(f"step {step} loss {mean.item():.4f}", flush=True)
    distribute_bn(model, dist.get_world_size(), True)
    if saver:
        saver.save_checkpoint(0, metric=1.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "resnet50")
