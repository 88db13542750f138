"""Pipeline parallelism (torch.distributed.pipelining) in every schedule, with FSDP2 beside it if ranks are left.

torchrun --nproc-per-node 8 pipeline.py --schedule ZBVZeroBubble --pipeline-ranks 4
"""

import torch
import torch.distributed as dist
from small_gpt import batch_of, build, loss_of, options, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
FOLDED = ["ZBVZeroBubble", "DualPipeV"]  # the first and the last stage are on the same rank


def stages_of(schedule, rank, ranks):
    """The stages of a rank, and the number of all stages."""
    if issubclass(get_schedule_class(schedule), PipelineScheduleSingle):
        return [rank], ranks
    return [rank, 2 * ranks - 1 - rank if schedule in FOLDED else ranks + rank], 2 * ranks


def main():
    parser = options(__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--pipeline-ranks", type=int, help="ranks of one pipeline (default: all)")
    parser.add_argument("--microbatches", type=int, default=16)
    parser.set_defaults(layers=16, batch=16)
    args = parser.parse_args()

    device = start(args)
    ranks = args.pipeline_ranks or dist.get_world_size()
    shape = dist.get_world_size() // ranks, ranks
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("data", "pipeline"))
    data, pipeline = mesh["data"], mesh["pipeline"]

    numbers, stages = stages_of(args.schedule, pipeline.get_local_rank(), ranks)
    parts = torch.nn.ModuleList()
    for number in numbers:
        part = build(args).keep_part(number, stages).to(device)
        if data.size() > 1:
            for block in part.blocks.values():
                fully_shard(block, mesh=data, reshard_after_forward=False)
            fully_shard(part, mesh=data, reshard_after_forward=False)
        parts.append(part)
    pipeline_stages = [
        PipelineStage(part, number, stages, device, group=pipeline.get_group())
        for number, part in zip(numbers, parts, strict=True)
    ]
    schedule_class = get_schedule_class(args.schedule)
    single = issubclass(schedule_class, PipelineScheduleSingle)
    schedule = schedule_class(
        pipeline_stages[0] if single else pipeline_stages, n_microbatches=args.microbatches, loss_fn=loss_of
    )
    optimizer = torch.optim.AdamW(parts.parameters(), lr=args.lr)
    first, last = 0 in numbers, stages - 1 in numbers

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, data.get_local_rank(), data.size())
        losses = []
        schedule.step(*([inputs] if first else []), target=targets if last else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if last:  # the rank of the last stage knows the loss
            loss = torch.stack(losses).mean().detach()
            dist.all_reduce(loss, group=data.get_group())
            if data.get_local_rank() == 0:
                print(f"step {step}  loss {loss.item() / data.size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
