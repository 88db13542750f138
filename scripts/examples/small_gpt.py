"""Shared code of the distributed examples in this folder: a small GPT, its options, its data, and the start of a rank.

The model can be cut along every axis: the query, key and value projections are separate (tensor parallelism), some of
its layers also form a model (pipeline parallelism), and the positions are an input (context parallelism).
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, hidden, head):
        super().__init__()
        self.head = head
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x):
        # The size determines the number of heads: under tensor parallelism a rank has only some of them.
        parts = self.query, self.key, self.value
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, hidden, head):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, head)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = MLP(hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens to logits. Without its first layers it starts from activations, without its last it ends with them."""

    def __init__(self, vocabulary, sequence, layers, hidden, heads):
        super().__init__()
        self.sequence = sequence
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleDict({str(layer): Block(hidden, hidden // heads) for layer in range(layers)})
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, x, positions=None):
        if self.tokens is not None:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
            x = self.tokens(x) + self.positions(positions)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))

    def keep_part(self, part, parts):
        """Drops every layer but those of one of `parts` stages of a pipeline."""
        layers = len(self.blocks)
        kept = range(part * layers // parts, (part + 1) * layers // parts)
        self.blocks = nn.ModuleDict({str(layer): self.blocks[str(layer)] for layer in kept})
        if part > 0:
            self.tokens = self.positions = None
        if part < parts - 1:
            self.norm = self.head = None
        return self


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def options(description):
    """A parser with the options that all examples have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4, help="sequences per data-parallel rank")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser


def start(args, backend=None):
    """Joins the process group that torchrun's environment describes, and returns this rank's device."""
    if args.device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    # With a device id, torch splits further groups off the first one: fast in NCCL, seconds in Gloo.
    dist.init_process_group(backend or "nccl", device_id=None if backend else device)
    return device


def build(args, device="cpu", model=GPT):
    """The model; the same weights on every rank."""
    torch.manual_seed(0)
    with torch.device(device):
        return model(args.vocabulary, args.sequence, args.layers, args.hidden, args.heads)


def batch_of(args, step, device, part=0, parts=1):
    """Inputs and targets of a step: the rows of one of `parts` data-parallel ranks."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(args.vocabulary, (parts * args.batch, args.sequence + 1), generator=generator)
    tokens = tokens[part * args.batch : (part + 1) * args.batch].to(device)
    return tokens[:, :-1], tokens[:, 1:]


def report(step, loss, *more):
    """Prints, on one rank, the mean of the ranks' losses."""
    mean = loss.detach().float().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"step {step}", f"loss {mean.item() / dist.get_world_size():.4f}", *more, sep="  ", flush=True)
