"""What ranks do in test_virtual_clock.py: everything that has a place on the timeline.

In: names of parts as arguments. Out: after each part, a line of JSON with the part, the rank, and what its clocks said.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn


def model(layers: int = 3, hidden: int = 512) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(hidden, hidden) for _ in range(layers)))


def ddp() -> None:
    """Collectives beside the backward pass; ranks with more to do than others."""
    wrapped = nn.parallel.DistributedDataParallel(model().cuda(), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(wrapped.parameters(), fused=True)
    batch = torch.randn(512 * (1 + dist.get_rank()), 512, device="cuda")
    for _ in range(3):
        loss = wrapped(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def fsdp() -> None:
    """Gathers ahead of the layers that need them."""
    from torch.distributed.fsdp import fully_shard

    layers = model(4).cuda()
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=True)
    batch = torch.randn(2048, 512, device="cuda")
    for _ in range(3):
        layers(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def pipeline() -> None:
    """Messages from rank to rank, small and larger than NCCL's buffer, one by one and in groups."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for size in (1024, 3 << 20):
        there = torch.zeros(size, device="cuda")
        if rank > 0:
            dist.recv(there, rank - 1)
        there = there @ torch.ones(size, 16, device="cuda") if size <= 1024 else there + 1
        there = torch.zeros(size, device="cuda")
        if rank < ranks - 1:
            dist.send(there, rank + 1)
        back = torch.empty_like(there)
        calls = [dist.P2POp(dist.isend, there, (rank + 1) % ranks), dist.P2POp(dist.irecv, back, (rank - 1) % ranks)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        parts = list(torch.zeros(ranks, 64, device="cuda"))  # messages, one of them to the own rank
        dist.all_to_all([torch.empty_like(part) for part in parts], parts)
    torch.cuda.synchronize()


def alone() -> None:
    """Communicators of one rank."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    mine = groups[dist.get_rank()]
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor, group=mine)
    (tensor * 2).sum().item()
    dist.all_gather_into_tensor(torch.empty_like(tensor), tensor, group=mine)
    torch.cuda.synchronize()


def graph() -> None:
    """Kernels and a collective that a graph launches, on another stream than they were captured on."""
    first = torch.ones(1024, 1024, device="cuda")
    tensor = torch.ones(1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first @ first
        dist.all_reduce(tensor)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        product = first @ first
        dist.all_reduce(tensor)
        product = product.relu()
    for _ in range(3):
        first.add_(1)
        captured.replay()
        first.mul_(2)
    torch.cuda.current_stream().synchronize()


def streams() -> None:
    """Two streams of torch's, two that wait for the default stream, and the default stream itself."""
    runtime = ctypes.CDLL("libcudart.so.13")
    handles = [ctypes.c_void_p() for _ in range(2)]
    for handle in handles:
        assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
    blocking = [torch.cuda.ExternalStream(int(handle.value or 0)) for handle in handles]
    matrix = torch.ones(2048, 2048, device="cuda")
    event = torch.cuda.Event()
    for stream in (*blocking, torch.cuda.Stream(), torch.cuda.default_stream(), blocking[0], torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            matrix @ matrix
            event.record()
            matrix.add_(1)
        torch.cuda.Stream().wait_event(event)
    torch.cuda.default_stream().synchronize()
    blocking[1].synchronize()
    torch.cuda.synchronize()


def synchronizing() -> None:
    """Ops that wait for the device, in all the ways there are."""
    matrix = torch.ones(1024, 1024, device="cuda")
    for _ in range(2):
        (matrix @ matrix).sum().item()
        torch.tensor([1, 0, 2], device="cuda").nonzero()
        (matrix @ matrix)[0].cpu()
        torch.zeros(16).cuda()
        matrix.to("cpu", non_blocking=True)
        torch.zeros(1 << 20, pin_memory=True).to("cuda", non_blocking=True)
    del matrix
    torch.cuda.empty_cache()


def threads() -> None:
    """Threads of the program's own, each with a cursor of its own."""

    def work(stream: torch.cuda.Stream) -> None:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        with torch.cuda.stream(stream):
            matrix = torch.ones(512, 512, device="cuda")
            for _ in range(5):
                matrix = matrix @ matrix
            matrix.sum().item()

    every = [threading.Thread(target=work, args=(torch.cuda.Stream(),)) for _ in range(3)]
    for thread in every:
        thread.start()
    matrix = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    (matrix @ matrix).sum().backward()
    matrix.grad.sum().item()
    for thread in every:
        thread.join()
    torch.cuda.synchronize()


def beside() -> None:
    """A thread that begins while the first one waits for late ranks, and autograd's threads, which share its cursor."""

    def work(stream: torch.cuda.Stream, ending: threading.Event) -> None:
        ending.wait(0.1)
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        with torch.cuda.stream(stream):
            matrix = torch.ones(768, 768, device="cuda", requires_grad=True)
            (matrix @ matrix).sum().backward()
            (matrix @ matrix).relu().sum().item()

    for _ in range(2):
        ending = threading.Event()
        thread = threading.Thread(target=work, args=(torch.cuda.Stream(), ending))
        thread.start()
        if dist.get_rank() % 2:
            time.sleep(0.3)
        dist.all_reduce(torch.ones(1 << 16, device="cuda"))
        torch.cuda.synchronize()
        ending.set()
        thread.join()
        torch.cuda.synchronize()


def waiting() -> None:
    """A program that asks until something is over, sleeps, and waits for a time."""
    matrix = torch.ones(4096, 4096, device="cuda")
    event = torch.cuda.Event()
    for _ in range(3):
        matrix @ matrix
    event.record()
    while not event.query():
        pass
    matrix @ matrix
    while not torch.cuda.current_stream().query():
        pass
    time.sleep(0.01)
    until = time.perf_counter_ns() + 3_000_000
    while time.perf_counter_ns() < until:
        pass
    matrix @ matrix
    torch.cuda.synchronize()


def timed() -> list[float]:
    """What events say about work between them."""
    matrix = torch.ones(2048, 2048, device="cuda")
    found = []
    for count in (1, 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        start.synchronize()
        for _ in range(count):
            matrix @ matrix
            dist.all_reduce(matrix)
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return found


PARTS: dict[str, Callable[[], object]] = {
    part.__name__: part
    for part in (ddp, fsdp, pipeline, alone, graph, streams, synchronizing, threads, beside, waiting, timed)
}


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    for name in sys.argv[1:] or PARTS:
        said = PARTS[name]()
        torch.cuda.synchronize()
        clock = time.perf_counter_ns()
        torch.cuda.synchronize()
        print(
            json.dumps({"part": name, "rank": dist.get_rank(), "clock": clock, "said": said}) + "\n", end="", flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
