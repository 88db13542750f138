"""FullyShardedDataParallel (the first FSDP): full, gradient-only and hybrid sharding, mixed precision, checkpointing.

torchrun --nproc-per-node 8 fsdp1.py --sharding hybrid --mixed-precision --checkpointing
"""

import functools

import torch
import torch.distributed as dist
from small_gpt import Block, batch_of, build, loss_of, options, report, start
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

SHARDING = {
    "full": ShardingStrategy.FULL_SHARD,
    "gradients": ShardingStrategy.SHARD_GRAD_OP,
    "none": ShardingStrategy.NO_SHARD,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}


def main():
    parser = options(__doc__)
    parser.add_argument("--sharding", choices=list(SHARDING), default="full")
    parser.add_argument("--shards", type=int, default=2, help="ranks that share one copy (--sharding hybrid)")
    parser.add_argument("--mixed-precision", action="store_true", help="compute and reduce in bfloat16")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in backward")
    parser.add_argument("--original-parameters", action="store_true", help="keep the parameters visible, as views")
    args = parser.parse_args()

    device = start(args)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = None
    if args.sharding == "hybrid":
        mesh = init_device_mesh(args.device, (ranks // args.shards, args.shards), mesh_dim_names=("copies", "shards"))
    model = FSDP(
        build(args),
        device_id=device,
        device_mesh=mesh,
        sharding_strategy=SHARDING[args.sharding],
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16) if args.mixed_precision else None,
        use_orig_params=args.original_parameters,
        sync_module_states=args.device == "cuda",
    )
    if args.checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters())} of the parameters are on rank 0")

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, rank, ranks)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss, f"norm {norm.item():.4f}")

    whole = StateDictOptions(full_state_dict=True, cpu_offload=args.device == "cuda")
    state = get_model_state_dict(model, options=whole)
    if rank == 0:
        print(f"the whole model: {len(state)} tensors of {sum(tensor.numel() for tensor in state.values())} elements")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
