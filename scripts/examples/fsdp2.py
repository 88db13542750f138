"""FSDP2 (`fully_shard`): per-parameter sharding, on one mesh dimension or hybrid on two, mixed precision, resharding.

torchrun --nproc-per-node 8 fsdp2.py --shards 4 --mixed-precision
"""

import torch
import torch.distributed as dist
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

RESHARD = {"always": True, "never": False, "default": None}


def main():
    parser = options(__doc__)
    parser.add_argument("--shards", type=int, help="ranks that share one copy (default: all; fewer is HSDP)")
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16, reduce in float32")
    parser.add_argument("--reshard-after-forward", choices=[*RESHARD, "partly"], default="default")
    parser.add_argument("--prefetch", type=int, default=1, help="layers gathered ahead, forward and backward")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step, reduced with the last one")
    parser.add_argument("--offload", action="store_true", help="parameters and optimizer in host memory (GPUs only)")
    args = parser.parse_args()

    # Offloaded gradients are reduced in host memory, which needs a second backend.
    device = start(args, "cpu:gloo,cuda:nccl" if args.offload else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shards = args.shards or ranks
    if shards == ranks:
        mesh = init_device_mesh(args.device, (ranks,), mesh_dim_names=("shards",))
    else:
        mesh = init_device_mesh(args.device, (ranks // shards, shards), mesh_dim_names=("copies", "shards"))
    # An integer reshards to that many ranks after forward, so that backward gathers within a node only.
    reshard = shards // 2 if args.reshard_after_forward == "partly" else RESHARD[args.reshard_after_forward]

    model = build(args, "meta")
    policy = {
        "mesh": mesh,
        "reshard_after_forward": reshard,
        "mp_policy": MixedPrecisionPolicy(*((torch.bfloat16, torch.float32) if args.mixed_precision else ())),
        "offload_policy": CPUOffloadPolicy() if args.offload else OffloadPolicy(),
    }
    blocks = list(model.blocks.values())
    for block in blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + args.prefetch])
        block.set_modules_to_backward_prefetch(blocks[max(number - args.prefetch, 0) : number][::-1])

    # The weights are made where they belong, a shard on each rank.
    model.to_empty(device="cpu" if args.offload else device)
    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=True)
    if rank == 0:
        weight = model.tokens.weight
        print(f"embedding of {tuple(weight.shape)}: {tuple(weight.to_local().shape)} here, {weight.placements}")

    for step in range(args.steps):
        for part in range(args.accumulate):
            model.set_requires_gradient_sync(part == args.accumulate - 1)
            inputs, targets = batch_of(args, step * args.accumulate + part, device, rank, ranks)
            loss = loss_of(model(inputs), targets)
            (loss / args.accumulate).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss, f"norm {norm.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
