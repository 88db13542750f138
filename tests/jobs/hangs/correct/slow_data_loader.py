"""A worker of a data loader that takes seconds for a sample; the other rank waits."""

import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Slow:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == 0:
            time.sleep(2.5)
        return torch.ones(4) * index


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    for batch in DataLoader(Slow(), num_workers=1):
        total = batch.cuda()
        dist.all_reduce(total)
        total.sum().item()
    dist.destroy_process_group()


main()
