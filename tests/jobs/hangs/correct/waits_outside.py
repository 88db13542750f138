"""A rank waits for something outside of the job, in one of many ways, until the test lets it go on.

waits_outside.py KIND PATH: a socket, a named pipe or a file of the test's, whichever the kind needs.
"""

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

KIND, PATH = sys.argv[1:]
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.distributed_c10d._get_default_store()
groups = [dist.new_group([0, 1]) for _ in range(2)]


def reduce(group: int = 0) -> None:
    value = torch.ones(4, device="cuda")
    dist.all_reduce(value, group=groups[group])
    value.sum().item()


def receive() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(PATH)
    connection.recv(1)


def wait_for_thread() -> None:
    there = threading.Event()

    def fetch() -> None:
        receive()
        there.set()

    threading.Thread(target=fetch).start()
    there.wait()


def lock_file() -> None:
    with Path(PATH).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def start_workers() -> None:
    list(DataLoader(torch.ones(2), num_workers=1, worker_init_fn=lambda _: receive()))


def beat() -> None:
    while not Path(PATH).exists():
        store.set("beat", "now")
        time.sleep(0.1)


WAITS: dict[str, Callable[[], object]] = {
    "socket": receive,
    "thread": wait_for_thread,
    "lock": lock_file,
    "pipe": lambda: os.read(os.open(PATH, os.O_RDONLY), 1),
    "child": lambda: subprocess.run(["cat", PATH], check=True),
    "workers": start_workers,
    "heartbeat": beat,
}

for group in range(2):
    reduce(group)
if KIND == "outstanding":  # rank 0 has called what rank 1 calls when it may
    value = torch.ones(4, device="cuda")
    if rank == 0:
        work = dist.all_reduce(value, group=groups[0], async_op=True)
        receive()
        store.set("there", "yes")
    else:
        store.get("there")
        work = dist.all_reduce(value, group=groups[0], async_op=True)
    work.wait()
elif (
    KIND == "collective thread"
):  # a thread of rank 0 calls what rank 1 waits for, while its main thread waits for rank 1

    def receive_and_reduce() -> None:
        receive()
        with torch.cuda.stream(torch.cuda.Stream()):
            reduce(1)

    if rank == 0:
        thread = threading.Thread(target=receive_and_reduce)
        thread.start()
    else:
        reduce(1)
    reduce(0)
    if rank == 0:
        thread.join()
elif KIND == "gloo":
    group = dist.new_group(backend="gloo")
    if rank == 0:
        receive()
    dist.barrier(group)
elif rank == 0:
    WAITS[KIND]()
reduce()
print("done", rank)
dist.destroy_process_group()
