"""DistributedDataParallel: gradient accumulation, unused parameters, static graphs, bucket views, communication hooks.

torchrun --nproc-per-node 8 ddp.py --hook powersgd
"""

import contextlib
import random

import torch
import torch.distributed as dist
from small_gpt import GPT, batch_of, build, loss_of, options, report, start
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class LayerDrop(GPT):
    """Skips a random layer, a different one on every rank, so that its parameters get no gradient there."""

    def forward(self, x):
        skipped = random.choice(list(self.blocks))
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for name, block in self.blocks.items():
            if name != skipped:
                x = block(x)
        return self.head(self.norm(x))


def register_hook(model, hook):
    if hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        # The first two steps reduce whole gradients; PowerSGD's low-rank approximations start with the third.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main():
    parser = options(__doc__)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step, reduced with the last one")
    parser.add_argument("--find-unused-parameters", action="store_true", help="train with layers skipped at random")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--bucket-view", action="store_true", help="gradients are views of DDP's buckets")
    parser.add_argument("--hook", choices=["bf16", "fp16", "powersgd"], help="communication hook (powersgd: GPUs only)")
    args = parser.parse_args()

    device = start(args)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    random.seed(rank)
    model = build(args, device, LayerDrop if args.find_unused_parameters else GPT)
    model = DistributedDataParallel(
        model,
        device_ids=[device] if args.device == "cuda" else None,
        find_unused_parameters=args.find_unused_parameters,
        static_graph=args.static_graph,
        gradient_as_bucket_view=args.bucket_view,
    )
    register_hook(model, args.hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        for part in range(args.accumulate):
            inputs, targets = batch_of(args, step * args.accumulate + part, device, rank, ranks)
            last = part == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_of(model(inputs), targets)
                (loss / args.accumulate).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss, f"norm {norm.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
