"""Tensor parallelism with DTensor: column- and row-wise layers, sequence and loss parallelism; with FSDP2 beside it.

torchrun --nproc-per-node 8 tensor_parallel.py --tensor-ranks 4 --sequence-parallel --loss-parallel
"""

import contextlib

import torch
import torch.distributed as dist
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def parallelize(model, mesh, sequence_parallel, logits_sharded):
    """Splits heads and hidden units over the mesh; between the layers activations are whole, or split by sequence."""
    between = Shard(1) if sequence_parallel else Replicate()
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "positions": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0) if sequence_parallel else Replicate()
        ),
        "head": ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if logits_sharded else Replicate(),
            use_local_output=not logits_sharded,
        ),
    }
    block_plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.projection": RowwiseParallel(output_layouts=between),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=between),
    }
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
        block_plan["attention_norm"] = block_plan["mlp_norm"] = SequenceParallel()
        for part in "attention", "mlp":
            block_plan[part] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    for block in model.blocks.values():
        parallelize_module(block, mesh, block_plan)


def main():
    parser = options(__doc__)
    parser.add_argument("--tensor-ranks", type=int, help="ranks that share one model (default: all)")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--loss-parallel", action="store_true", help="leave the logits split by vocabulary")
    args = parser.parse_args()

    device = start(args)
    tensor_ranks = args.tensor_ranks or dist.get_world_size()
    shape = dist.get_world_size() // tensor_ranks, tensor_ranks
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("data", "tensor"))
    model = build(args, device)
    parallelize(model, mesh["tensor"], args.sequence_parallel, args.loss_parallel)
    if mesh["data"].size() > 1:
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    # One parameter at a time: without sequence parallelism the norms' parameters are not DTensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    if dist.get_rank() == 0:
        weight = model.blocks["0"].mlp.up.weight
        print(f"weight of {tuple(weight.shape)}: {tuple(weight.to_local().shape)} here, {weight.placements}")

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, mesh["data"].get_local_rank(), mesh["data"].size())
        with loss_parallel() if args.loss_parallel else contextlib.nullcontext():
            loss = loss_of(model(inputs), targets)
            loss.backward()
        if args.loss_parallel:
            loss = loss.full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
