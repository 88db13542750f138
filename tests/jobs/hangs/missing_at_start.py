"""One rank never comes to the first collective: it waits for a lock that it holds itself."""

import os
import threading

import torch.distributed as dist

if os.environ["RANK"] == "2":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # stands
dist.init_process_group("nccl")
dist.barrier()  # waits
dist.destroy_process_group()
