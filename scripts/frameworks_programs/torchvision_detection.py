"""torchvision: Faster R-CNN on random images and boxes by DDP, then a prediction.

torchrun --nproc-per-node 2 torchvision_detection.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.detection import fasterrcnn_resnet50_fpn


def main():
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=10, min_size=320).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        images = [torch.rand(3, 320, 320, device=device) for _ in range(2)]
        corner = torch.rand(4, 2, device=device) * 100
        boxes = torch.cat([corner, corner + 100], dim=1)
        targets = [{"boxes": boxes, "labels": torch.randint(1, 10, (4,), device=device)} for _ in images]
        losses = parallel(images, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step}: {', '.join(losses)}", flush=True)
    model.eval()
    with torch.no_grad():
        model([torch.rand(3, 320, 320, device=device)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
