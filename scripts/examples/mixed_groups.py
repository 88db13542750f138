"""Collectives of all kinds on several process groups: NCCL for GPU memory, Gloo for host memory, and parts of both.

torchrun --nproc-per-node 8 mixed_groups.py

Takes an even number of ranks. The output of rank 0 depends only on their number.
"""

import argparse
import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def show(title, value):
    """Prints the value of every rank, or one value if all are equal."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    if dist.get_rank() == 0:
        same = all(other == values[0] for other in values)
        print(f"{title}: {f'{value} on every rank' if same else values}", flush=True)


def reductions(rank, ranks, device):
    for name in "SUM", "PRODUCT", "MIN", "MAX":
        tensor = torch.tensor([rank + 1, 2], device=device)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
        show(f"all_reduce {name}", tensor)
    tensor = torch.tensor([float(rank)], device=device, dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    show("all_reduce of bfloat16", tensor)
    tensor = torch.tensor([rank], device=device)
    dist.reduce(tensor, dst=1)
    if rank == 1:
        print(f"reduce to rank 1: {tensor.item()}", flush=True)
    dist.barrier()
    part = torch.empty(2, dtype=torch.long, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(2 * ranks, device=device) + rank)
    show("reduce_scatter_tensor", part)


def redistributions(rank, ranks, device):
    tensor = torch.full((2,), rank, device=device)
    dist.broadcast(tensor, src=ranks - 1)
    show("broadcast from the last rank", tensor)
    mine = torch.tensor([rank, rank * rank], device=device)
    parts = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    show("all_gather", torch.stack(parts))
    whole = torch.empty(2 * ranks, dtype=torch.long, device=device)
    dist.all_gather_into_tensor(whole, mine)
    show("all_gather_into_tensor", whole)
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    if rank == 0:
        print(f"gather: {torch.stack(parts).tolist()}", flush=True)
    dist.scatter(mine, [torch.full((2,), 10 + part, device=device) for part in range(ranks)] if rank == 0 else None)
    show("scatter", mine)


def exchanges(rank, ranks, device):
    received = torch.empty(ranks, dtype=torch.long, device=device)
    dist.all_to_all_single(received, torch.arange(ranks, device=device) + 100 * rank)
    show("all_to_all_single", received)
    # Every pair exchanges a different number of elements, and exchanges that number first.
    send_sizes = torch.tensor([(rank + peer) % 4 for peer in range(ranks)], device=device)
    receive_sizes = torch.empty_like(send_sizes)
    dist.all_to_all_single(receive_sizes, send_sizes)
    send_sizes, receive_sizes = send_sizes.tolist(), receive_sizes.tolist()
    received = torch.empty(sum(receive_sizes), dtype=torch.long, device=device)
    sent = torch.full((sum(send_sizes),), rank, device=device)
    dist.all_to_all_single(received, sent, receive_sizes, send_sizes)
    show("all_to_all_single of different sizes", received)
    received = [torch.empty(2, dtype=torch.long, device=device) for _ in range(ranks)]
    dist.all_to_all(received, [torch.tensor([rank, peer], device=device) for peer in range(ranks)])
    show("all_to_all", [tensor.tolist() for tensor in received])


def point_to_point(rank, ranks, device):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    message, received = torch.tensor([rank], device=device), torch.tensor([-1], device=device)
    ring = [dist.P2POp(dist.isend, message, right), dist.P2POp(dist.irecv, received, left)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    show("batch_isend_irecv from the left", received)
    # Along the line: every rank adds its rank to its left neighbour's value.
    total = torch.tensor([rank], device=device)
    if rank > 0:
        dist.recv(received, src=left)
        total += received
    if rank < ranks - 1:
        dist.send(total, dst=right)
    show("send and recv along the line", total)
    pair = rank ^ 1
    if rank < pair:
        dist.isend(message, pair).wait()
        dist.irecv(received, pair).wait()
    else:
        dist.irecv(received, pair).wait()
        dist.isend(message, pair).wait()
    show("isend and irecv in pairs", received)


def objects(rank, ranks):
    found = [None] * ranks
    dist.all_gather_object(found, {"rank": rank, "text": "x" * (3 * rank)})
    show("all_gather_object", [len(each["text"]) for each in found])
    words = [f"word {rank}", {"of": rank}]
    dist.broadcast_object_list(words, src=1)
    show("broadcast_object_list", words)
    mine = [None]
    dist.scatter_object_list(mine, [f"for {part}" for part in range(ranks)] if rank == 0 else None, src=0)
    show("scatter_object_list", mine)
    dist.gather_object((rank, "a" * rank), found if rank == 0 else None, dst=0)
    if rank == 0:
        print(f"gather_object: {found}", flush=True)


def subgroups(rank, ranks, device):
    members = [list(range(0, ranks, 2)), list(range(1, ranks, 2))]
    groups = [dist.new_group(ranks) for ranks in members]
    tensor = torch.tensor([rank], device=device)
    dist.all_reduce(tensor, group=groups[rank % 2])
    show("all_reduce among the even and the odd", tensor)
    mine, _ = dist.new_subgroups(group_size=2)
    tensor = torch.tensor([rank], device=device)
    dist.all_reduce(tensor, group=mine)
    show("all_reduce in pairs", tensor)
    mesh = init_device_mesh(device.type, (2, ranks // 2), mesh_dim_names=("rows", "columns"))
    for name in "rows", "columns":
        tensor = torch.tensor([rank], device=device)
        dist.all_reduce(tensor, group=mesh.get_group(name))
        show(f"all_reduce along the {name} of a mesh", tensor)


def many_at_once(rank, device):
    tensors = [torch.full((size,), rank, device=device) for size in (1, 2, 3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    show("asynchronous", [tensor.tolist() for tensor in tensors])
    tensors = [torch.full((size,), rank, device=device) for size in (1, 2, 3)]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor)
    coalesced.wait()
    show("coalesced", [tensor.tolist() for tensor in tensors])


def host_memory(rank, ranks):
    """Host tensors, on the Gloo backend of the default group and in a Gloo-only group."""
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor)
    show("all_reduce in host memory", tensor)
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=60))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group, op=dist.ReduceOp.MAX)
    show("all_reduce over Gloo", tensor)
    names = [None] * ranks
    dist.all_gather_object(names, f"rank {rank}", group=group)
    show("all_gather_object over Gloo", names[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    reductions(rank, ranks, device)
    redistributions(rank, ranks, device)
    exchanges(rank, ranks, device)
    point_to_point(rank, ranks, device)
    objects(rank, ranks)
    subgroups(rank, ranks, device)
    many_at_once(rank, device)
    host_memory(rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
