"""Context parallelism: the sequence is split over ranks, and attention passes keys and values around them (GPUs only).

torchrun --nproc-per-node 8 context_parallel.py --context-ranks 4 --rotate alltoall
"""

import torch
import torch.distributed as dist
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def main():
    parser = options(__doc__)
    parser.add_argument("--context-ranks", type=int, help="ranks that share one sequence (default: all)")
    parser.add_argument("--rotate", choices=["allgather", "alltoall"], default="allgather")
    parser.add_argument("--attention", choices=list(ATTENTION), default="flash")
    parser.set_defaults(sequence=1024, batch=1)
    args = parser.parse_args()

    device = start(args)
    context_ranks = args.context_ranks or dist.get_world_size()
    shape = dist.get_world_size() // context_ranks, context_ranks
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("data", "context"))
    data, context = mesh["data"], mesh["context"]
    set_rotate_method(args.rotate)

    # Every rank has different tokens, from the same sequence or another: average the gradients over all ranks.
    model = build(args, device).bfloat16()
    everyone = mesh._flatten("everyone")
    for block in model.blocks.values():
        fully_shard(block, mesh=everyone)
    fully_shard(model, mesh=everyone)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, data.get_local_rank(), data.size())
        inputs, targets = inputs.contiguous(), targets.contiguous()
        positions = torch.arange(args.sequence, device=device)
        split = [inputs, targets, positions]
        with (
            sdpa_kernel(ATTENTION[args.attention]),
            context_parallel(context, buffers=split, buffer_seq_dims=[1, 1, 0], no_restore_buffers=set(split)),
        ):
            loss = loss_of(model(inputs, positions), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss, f"{inputs.shape[1]} of {args.sequence} tokens a rank")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
