"""Rank 0 prepares data in a pool of processes, and a pool of threads that sleep; the other rank waits."""

import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import torch
import torch.distributed as dist


def prepare(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    total = torch.ones(4, device="cuda")
    if rank == 0:
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            assert list(pool.map(prepare, [1.5, 1.5])) == [1.5, 1.5]
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(prepare, [1.5, 1.5])) == [1.5, 1.5]
    dist.all_reduce(total)
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
