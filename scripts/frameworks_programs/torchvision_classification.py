"""torchvision: ResNet-50 as its references train it: transforms v2, mixed precision, EMA, label smoothing.

torchrun --nproc-per-node 2 torchvision_classification.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import FakeData
from torchvision.models import resnet50
from torchvision.transforms import v2


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    transforms = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(176, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    data = FakeData(64, (3, 224, 224), 100, transforms)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, pin_memory=True)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(resnet50(num_classes=100).to(device))
    parallel = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    average = AveragedModel(model, device=device, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    scaler, loss_of = torch.amp.GradScaler("cuda"), torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = parallel(images)
            loss = loss_of(outputs, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        right = (outputs.argmax(1) == labels).sum().item()
        print(f"rank {rank} loss {loss.item():.4f}, {right} of {len(labels)} right", flush=True)
    if rank == 0:
        torch.save({"model": model.state_dict(), "ema": average.state_dict()}, "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
