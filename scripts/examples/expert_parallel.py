"""Mixture of experts: every rank has some of the experts, and an all-to-all carries each token to those that it chose.

torchrun --nproc-per-node 8 expert_parallel.py --experts 16 --top 2 --expert-ranks 4
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from small_gpt import batch_of, build, loss_of, options, report, start
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh


class Experts(nn.Module):
    """Takes the place of a block's MLP. A token's output is the weighted sum of the experts with its highest scores."""

    def __init__(self, hidden, experts, top, group):
        super().__init__()
        self.top, self.group, self.ranks = top, group, group.size()
        self.here = experts // self.ranks
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(hidden, 4 * hidden) for _ in range(self.here))
        self.down = nn.ModuleList(nn.Linear(4 * hidden, hidden) for _ in range(self.here))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top)
        order = chosen.flatten().argsort(stable=True)  # by expert; of the choices of all tokens
        counts = torch.bincount(chosen.flatten(), minlength=self.here * self.ranks)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.unflatten(0, (self.ranks, self.here)).sum(1).tolist()
        arriving = arriving.unflatten(0, (self.ranks, self.here))
        received = arriving.sum(1).tolist()

        rows = all_to_all_single_autograd(tokens[order // self.top], received, sent, self.group)
        rows = all_to_all_single_autograd(self.compute(rows, arriving), sent, received, self.group)
        rows = rows * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(tokens).index_add(0, order // self.top, rows).view_as(x)

    def compute(self, rows, arriving):
        """The experts' outputs; rows come rank by rank, and expert by expert from each."""
        expert = torch.arange(self.here, device=rows.device).repeat(self.ranks)
        order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
        parts = rows[order].split(arriving.sum(0).tolist())
        outputs = [down(F.gelu(up(part))) for up, down, part in zip(self.up, self.down, parts, strict=True)]
        return torch.cat(outputs)[order.argsort()]


def average_gradients(parameters, group):
    """The mean over all ranks; a gradient of an expert is the sum over those that share the experts already."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size()


def main():
    parser = options(__doc__)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--top", type=int, default=2, help="experts that a token chooses")
    parser.add_argument("--expert-ranks", type=int, help="ranks that share the experts (default: all)")
    args = parser.parse_args()

    device = start(args)
    expert_ranks = args.expert_ranks or dist.get_world_size()
    shape = dist.get_world_size() // expert_ranks, expert_ranks
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("replica", "expert"))
    model = build(args, device)
    for block in model.blocks.values():
        block.mlp = Experts(args.hidden, args.experts, args.top, mesh["expert"].get_group()).to(device)
    experts = [p for name, p in model.named_parameters() if ".mlp." in name and ".router." not in name]
    dense = [p for name, p in model.named_parameters() if ".mlp." not in name or ".router." in name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        inputs, targets = batch_of(args, step, device, dist.get_rank(), dist.get_world_size())
        loss = loss_of(model(inputs), targets)
        loss.backward()
        average_gradients(dense, dist.group.WORLD)
        average_gradients(experts, mesh["replica"].get_group())
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss, f"{len(experts)} of {len(experts) * expert_ranks} tensors of experts here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
