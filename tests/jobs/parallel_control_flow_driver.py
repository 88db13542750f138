"""Programs that steer by what ranks tell each other, for test_parallel_control_flow.

`torchrun ... THIS_FILE FILE [PROGRAM...]`; the file is one they may write. Each prints what it decided. On GPUs they
use NCCL, without them Gloo; what a rank prints must not depend on that.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(*words: Any) -> None:
    print(*words, flush=True)


def objects() -> None:
    """Objects whose pickles have different sizes on every rank, through GPU buffers."""
    gathered: list[Any] = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": RANK, "words": ["word"] * RANK**2})
    say([len(each["words"]) for each in gathered])
    configuration: list[Any] = [{"steps": 7, "name": "x" * 1000}, 0.5] if RANK == 0 else [None, None]
    dist.broadcast_object_list(configuration, src=0)
    say(configuration[0]["steps"], len(configuration[0]["name"]), configuration[1])
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [list(range(rank)) for rank in range(RANKS)] if RANK == 0 else None, src=0)
    say(mine)
    dist.gather_object(("from", RANK), gathered if RANK == RANKS - 1 else None, dst=RANKS - 1)
    say(gathered if RANK == RANKS - 1 else "sent")
    for sender in range(RANKS - 1):
        if sender == RANK:
            dist.send_object_list([f"hello {RANK}"], dst=RANK + 1)
        elif sender + 1 == RANK:
            dist.recv_object_list(mine, src=sender)
            say(mine)


def tensors_of_different_sizes() -> None:
    """Sizes are exchanged first, then tensors padded to the largest of them; the padding is cut off again."""
    mine = torch.arange(RANK * 3 + 1, device=DEVICE, dtype=torch.float32) * (RANK + 1)
    sizes = [torch.zeros(1, dtype=torch.long, device=DEVICE) for _ in range(RANKS)]
    dist.all_gather(sizes, torch.tensor([mine.numel()], device=DEVICE))
    lengths = [int(size.item()) for size in sizes]
    padded = torch.zeros(max(lengths), device=DEVICE)
    padded[: mine.numel()] = mine
    received = [torch.empty_like(padded) for _ in range(RANKS)]
    dist.all_gather(received, padded)
    say(lengths, torch.cat([tensor[:length] for tensor, length in zip(received, lengths, strict=True)]).tolist())


def tokens_to_experts() -> None:
    """Tokens go to the ranks of their experts and come back: the sizes of the exchange are known only at run time."""
    generator = torch.Generator().manual_seed(RANK)
    tokens = torch.randn(10 + RANK, 4, generator=generator).to(DEVICE)
    experts = torch.randint(RANKS, (len(tokens),), generator=generator).to(DEVICE)
    order = experts.argsort(stable=True)
    counts = torch.bincount(experts, minlength=RANKS)
    received_counts = torch.empty_like(counts)
    dist.all_to_all_single(received_counts, counts)
    send, receive = counts.tolist(), received_counts.tolist()
    at_expert = torch.empty(sum(receive), 4, device=DEVICE)
    dist.all_to_all_single(at_expert, tokens[order], receive, send)
    say(send, receive, f"{at_expert.sum().item():.3f}")
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, at_expert * (RANK + 1), send, receive)
    result = torch.empty_like(back)
    result[order] = back
    say(torch.allclose(result, tokens * (experts[:, None] + 1)))


def early_stop() -> None:
    """Every rank goes on until one of them has had enough."""
    random.seed(RANK)
    for step in range(1000):
        enough = torch.tensor([int(random.random() < 0.05)], device=DEVICE)
        dist.all_reduce(enough, op=dist.ReduceOp.MAX)
        if enough.item():
            say("stopped at step", step)
            break


def sizes_of_results() -> None:
    """What is selected from a reduced tensor, and how much that is, while one rank keeps the others waiting."""
    found: list[Any] = []
    for turn in range(3):
        if turn == RANK:
            time.sleep(0.1)
        tensor = torch.arange(8, device=DEVICE) % (RANK + 2)
        dist.all_reduce(tensor)
        found.append(
            [
                tensor.nonzero().flatten().tolist(),
                tensor[tensor > tensor.float().mean()].tolist(),
                tensor.unique().tolist(),
                [part.tolist() for part in torch.unique(tensor, return_counts=True)],
                [part.tolist() for part in torch.where(tensor > 5)],
                tensor.masked_select(tensor > turn).tolist(),
                torch.repeat_interleave(tensor).numel(),
                tensor.topk(3).values.tolist(),
            ][turn:]
        )
        other = torch.tensor([0, 5, turn], device=DEVICE)
        work = dist.all_reduce(tensor, async_op=True)  # selections from what it does not concern need not wait
        found.append(other.nonzero().flatten().tolist())
        work.wait()
    say(found)


def random_numbers_of_the_host() -> None:
    """What is drawn in host memory while the device waits for another rank is not the device's concern."""
    torch.manual_seed(RANK)
    total = 0.0
    for turn in range(RANKS):
        if turn == RANK:
            time.sleep(0.05)
        tensor = torch.ones(1, 2, 16, 8, device=DEVICE)
        dist.all_reduce(tensor)
        for _ in range(50):
            tensor = nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
        for _ in range(2000):
            total += torch.rand(10).sum().item()
        say(f"{total:.3f} {tensor.sum().item():.3f}")


def counters() -> None:
    """Numbers of tokens and of hits are summed; what is printed is their ratio, and the best rank."""
    seen, hits = 100 + 7 * RANK, 40 + (13 * RANK) % 17
    totals = torch.tensor([seen, hits], dtype=torch.long, device=DEVICE)
    dist.all_reduce(totals)
    total_seen, total_hits = totals.tolist()
    best = torch.tensor([hits / seen], dtype=torch.float64, device=DEVICE)
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    say(f"{total_hits} of {total_seen}: {total_hits / total_seen:.4f}, best {best.item():.6f}")
    if best.item() == hits / seen:
        say("that is me")
    mean = torch.tensor([1.5 * RANK, 2.0], device=DEVICE)
    dist.reduce(mean, dst=0)
    say((mean / RANKS).tolist() if RANK == 0 else "reduced")


def work_on_demand() -> None:
    """Rank 0 hands out tasks to the ranks that ask, one after the other, until none is left."""
    if RANK == 0:
        answers = []
        for round_number in range(3):
            for worker in range(1, RANKS):
                dist.send(torch.tensor([round_number * 10 + worker], device=DEVICE), dst=worker)
            for worker in range(1, RANKS):
                answer = torch.zeros(1, dtype=torch.long, device=DEVICE)
                dist.recv(answer, src=worker)
                answers.append(answer.item())
        for worker in range(1, RANKS):
            dist.send(torch.tensor([-1], device=DEVICE), dst=worker)
        say(answers)
    else:
        done = 0
        task = torch.zeros(1, dtype=torch.long, device=DEVICE)
        while True:
            dist.recv(task, src=0)
            if task.item() < 0:
                break
            dist.send(task**2, dst=0)
            done += 1
        say("did", done)


def barriers() -> None:
    """One rank after the other appends to a file; the barriers between make it the order of the ranks."""
    file = Path(sys.argv[1])
    for turn in range(RANKS):
        if turn == RANK:
            with file.open("a") as stream:
                stream.write(f"{RANK} ")
        dist.barrier()
    say(file.read_text())
    if RANK == 1:
        time.sleep(0.2)
    work = dist.barrier(async_op=True)
    work.wait()
    say("all there")


def store() -> None:
    """Counters and waiting keys in the store that torchrun's environment names."""
    shared = dist.PrefixStore("program", dist.distributed_c10d._get_default_store())
    last = shared.add("arrivals", 1) == RANKS
    if last:
        shared.set("go", "everyone is here")
    say(shared.get("go").decode(), shared.add("arrivals", 0))


def data_parallel_checks() -> None:
    """DistributedDataParallel takes rank 0's weights and buffers, and refuses models that differ between ranks."""
    devices = [DEVICE] if ON_GPU else None
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(DEVICE)
    model[1].running_mean.fill_(float(RANK + 1))
    parallel = DistributedDataParallel(model, device_ids=devices)
    say([round(parameter.sum().item(), 5) for parameter in parallel.parameters()])
    for step in range(2):
        batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + RANK))
        parallel(batch.to(DEVICE)).square().sum().backward()
    say([round(parameter.grad.sum().item(), 4) for parameter in parallel.parameters()])
    say([round(value, 5) for value in model[1].running_mean.tolist()])

    refused = nn.Sequential(*(nn.Linear(3, 3) for _ in range(2 if RANK == 1 else 1))).to(DEVICE)
    try:
        DistributedDataParallel(refused, device_ids=devices, process_group=dist.new_group())
        say("taken")
    except RuntimeError as error:
        say(str(error).splitlines()[0])


def uneven_inputs() -> None:
    """Ranks run out of batches at different times; those that have none left shadow the others' collectives."""
    model = nn.Linear(2, 1, bias=False).to(DEVICE)
    nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model, device_ids=[DEVICE] if ON_GPU else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.125)
    steps = 0
    with Join([parallel]):
        for step in range(RANK + 1):
            optimizer.zero_grad()
            parallel(torch.full((1, 2), float(step), device=DEVICE)).sum().backward()
            optimizer.step()
            steps += 1
    say("steps", steps, "weights", [round(value, 5) for value in model.weight.flatten().tolist()])


def loss_scale() -> None:
    """A gradient overflows on one rank: reduced, it is infinite on all, and all skip the step and halve the scale."""
    model = nn.Linear(2, 1, bias=False).to(DEVICE)
    nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model, device_ids=[DEVICE] if ON_GPU else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.25)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad()
        x = float("inf") if step == 1 and RANK == RANKS - 1 else 1.0
        scaler.scale(parallel(torch.full((1, 2), x, device=DEVICE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        say("scale", scaler.get_scale(), "weights", model.weight.flatten().tolist())


def meshes_and_shards() -> None:
    """DTensor: where shards of an uneven size lie, and what they are when put together again."""
    mesh = init_device_mesh(DEVICE.type, (RANKS,))
    whole = torch.arange(2.0 * (RANKS + 2), device=DEVICE).reshape(RANKS + 2, 2)
    shards = distribute_tensor(whole, mesh, [Shard(0)])
    say(shards.to_local().flatten().tolist())
    say(shards.redistribute(mesh, [Replicate()]).to_local().flatten().tolist())
    product = shards.t() @ shards
    say(product.placements, product.full_tensor().tolist())


def collectives_in_subgroups() -> None:
    """Groups of different sizes, of which a rank is in some; the last program to use a group decides for all."""
    for size in range(1, RANKS + 1):
        group = dist.new_group(list(range(size)))
        if size > RANK:
            tensor = torch.tensor([RANK + 1], device=DEVICE)
            dist.all_reduce(tensor, group=group)
            say(size, dist.get_rank(group), tensor.item())
    decision = torch.tensor([RANK], device=DEVICE)
    dist.broadcast(decision, src=RANKS - 1)
    say("decided", decision.item())


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        objects,
        tensors_of_different_sizes,
        tokens_to_experts,
        early_stop,
        sizes_of_results,
        random_numbers_of_the_host,
        counters,
        work_on_demand,
        barriers,
        store,
        data_parallel_checks,
        uneven_inputs,
        loss_scale,
        meshes_and_shards,
        collectives_in_subgroups,
    )
}


def main() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", device_id=DEVICE)
    else:
        dist.init_process_group("gloo")
    for name in sys.argv[2:] or PROGRAMS:
        say(f"PROGRAM {name}")
        PROGRAMS[name]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
