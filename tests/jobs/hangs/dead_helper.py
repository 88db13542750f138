"""The thread that loads the data has died of an exception, and the main thread waits for its next batch."""

import queue
import threading

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
batches: queue.Queue[torch.Tensor] = queue.Queue()


def load() -> None:
    for number in range(3):
        if rank == 1 and number == 1:
            raise OSError("a damaged shard")
        batches.put(torch.ones(4))


threading.Thread(target=load).start()
for _ in range(3):
    batch = batches.get()  # stands
    total = batch.cuda()
    dist.all_reduce(total)  # waits
    torch.cuda.synchronize()
dist.destroy_process_group()
