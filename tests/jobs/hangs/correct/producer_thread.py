"""The main thread waits for a thread that prepares data for some seconds; the other rank waits for both."""

import queue
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
batches: queue.Queue[int] = queue.Queue()


def prepare() -> None:
    time.sleep(3 * (1 - rank))
    batches.put(4)


threading.Thread(target=prepare).start()
size = batches.get()
dist.all_reduce(torch.ones(size, device="cuda"))
torch.cuda.synchronize()
dist.destroy_process_group()
