"""ZeroRedundancyOptimizer: DistributedDataParallel whose optimizer state is split over the ranks.

torchrun --nproc-per-node 8 zero.py --overlap
"""

import torch
import torch.distributed as dist
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = options(__doc__)
    parser.add_argument("--bucket-view", action="store_true", help="keep the parameters of a rank in one bucket")
    parser.add_argument("--overlap", action="store_true", help="step the optimizer during backward (GPUs only)")
    args = parser.parse_args()

    device = start(args)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(
        build(args, device), device_ids=[device] if args.device == "cuda" else None, static_graph=args.overlap
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.AdamW,
        parameters_as_bucket_view=args.bucket_view,
        overlap_with_ddp=args.overlap,
        lr=args.lr,
    )
    if args.overlap:
        model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, rank, ranks)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        if not args.overlap:
            optimizer.step()
        optimizer.zero_grad()
        report(step, loss)

    if not args.overlap:
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            print(f"the whole optimizer: state of {len(optimizer.state_dict()['state'])} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
