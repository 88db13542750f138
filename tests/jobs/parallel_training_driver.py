"""Trains the small GPT of scripts/examples in several ways, one after the other, for test_parallel_training.

`torchrun ... THIS_FILE WAY...`; each way starts from the same weights, sees the same batches, and prints its losses in
full. The way `alone` needs no other rank, no process group and no GPU: what the others have to agree with.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from small_gpt import Block, batch_of, build, loss_of, start  # type: ignore[import-not-found]
from tensor_parallel import parallelize  # type: ignore[import-not-found]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[int], Any]  # trains on the batch of that number; returns the loss, or None where it is not known
BATCH = 8  # sequences in all, whatever the number of ranks
LEARNING_RATE = 3e-3


def optimizer_of(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)


def rows(args: Any, step: int, rank: int, ranks: int, device: Any) -> tuple[Any, Any]:
    """A rank's part of the batch. There are two batches, so that what was learnt shows in the losses."""
    inputs, targets = batch_of(args, step % 2, device)
    part = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    return inputs[part], targets[part]


def alone(args: Any, device: Any) -> Step:
    return data_parallel(args, build(args, device), device, 0, 1)


def ddp(args: Any, device: Any) -> Step:
    model = DistributedDataParallel(build(args).to(device), device_ids=[device] if device.type == "cuda" else None)
    return data_parallel(args, model, device, dist.get_rank(), dist.get_world_size())


def zero(args: Any, device: Any) -> Step:
    model = DistributedDataParallel(build(args).to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE, foreach=False)
    return data_parallel(args, model, device, dist.get_rank(), dist.get_world_size(), optimizer)


def fsdp1(args: Any, device: Any) -> Step:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FullyShardedDataParallel(build(args), device_id=device, auto_wrap_policy=policy)
    return data_parallel(args, model, device, dist.get_rank(), dist.get_world_size())


def fsdp2(args: Any, device: Any) -> Step:
    return fully_sharded(args, device, (dist.get_world_size(),))


def hsdp(args: Any, device: Any) -> Step:
    return fully_sharded(args, device, (2, dist.get_world_size() // 2))


def fully_sharded(args: Any, device: Any, shape: tuple[int, ...]) -> Step:
    model = build(args).to(device)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return data_parallel(args, model, device, dist.get_rank(), dist.get_world_size())


def data_parallel(args: Any, model: Any, device: Any, rank: int, ranks: int, optimizer: Any = None) -> Step:
    optimizer = optimizer or optimizer_of(model)

    def train(step: int) -> Any:
        inputs, targets = rows(args, step, rank, ranks, device)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if ranks > 1:
            dist.all_reduce(loss)
        return loss / ranks

    return train


def tp(args: Any, device: Any) -> Step:
    return tensor_parallel(args, device, sequence_parallel=False)


def tp_sequence(args: Any, device: Any) -> Step:
    return tensor_parallel(args, device, sequence_parallel=True)


def tensor_parallel(args: Any, device: Any, *, sequence_parallel: bool) -> Step:
    model = build(args).to(device)
    parallelize(model, init_device_mesh(device.type, (dist.get_world_size(),)), sequence_parallel, False)
    return data_parallel(args, model, device, 0, 1)


def cp(args: Any, device: Any) -> Step:
    """Every rank has two parts of every sequence, of a multiple of 32 tokens each. GPUs only."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))
    model = build(args).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_of(model)

    def train(step: int) -> Any:
        inputs, targets = (tensor.contiguous() for tensor in batch_of(args, step % 2, device))
        split = [inputs, targets, torch.arange(args.sequence, device=device)]
        with (
            sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
            context_parallel(mesh, buffers=split, buffer_seq_dims=[1, 1, 0], no_restore_buffers=set(split)),
        ):
            loss = loss_of(model(split[0], split[2]), split[1])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss)
        return loss / ranks

    return train


def pp(args: Any, device: Any) -> Step:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return pipeline(args, device, Schedule1F1B, [rank], ranks)


def pp_interleaved(args: Any, device: Any) -> Step:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return pipeline(args, device, ScheduleInterleaved1F1B, [rank, ranks + rank], 2 * ranks)


def pp_zero_bubble(args: Any, device: Any) -> Step:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return pipeline(args, device, ScheduleZBVZeroBubble, [rank, 2 * ranks - 1 - rank], 2 * ranks)


def pipeline(args: Any, device: Any, schedule_class: Any, numbers: list[int], count: int) -> Step:
    parts = torch.nn.ModuleList(build(args).keep_part(number, count).to(device) for number in numbers)
    stages = [PipelineStage(part, number, count, device) for number, part in zip(numbers, parts, strict=True)]
    schedule = schedule_class(stages if len(stages) > 1 else stages[0], n_microbatches=BATCH, loss_fn=loss_of)
    optimizer = optimizer_of(parts)

    def train(step: int) -> Any:
        inputs, targets = batch_of(args, step % 2, device)
        losses: list[Any] = []
        first, last = 0 in numbers, count - 1 in numbers
        schedule.step(*([inputs] if first else []), target=targets if last else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if last else None

    return train


WAYS = {
    way.__name__: way
    for way in (
        *(alone, ddp, zero, fsdp1, fsdp2, hsdp),
        *(tp, tp_sequence, cp, pp, pp_interleaved, pp_zero_bubble),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ways", nargs="+", choices=list(WAYS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.set_defaults(vocabulary=96, hidden=64, heads=8, batch=BATCH)
    args = parser.parse_args()
    device = torch.device("cpu") if args.ways == ["alone"] else start(args)
    rank = int(os.environ.get("RANK", 0))
    for way in args.ways:
        train = WAYS[way](args, device)
        losses = [train(step) for step in range(args.steps)]
        # The last stage of a pipeline prints the losses; elsewhere all ranks know them, and rank 0 prints.
        if losses[0] is not None and (way.startswith("pp") or rank == 0):
            print(f"{way}:", *(repr(loss.item()) for loss in losses), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
