"""Interleaved 1F1B of train_gpt.py (--virtual-stages): every rank of a pipeline has several chunks of layers.

Chunk c of rank r is virtual stage c * ranks + r, so that a micro-batch visits every rank once per chunk, and ranks fill
and drain in a fraction of the time that whole stages take. The order of passes is Megatron-LM's. Send and receive
overlap with computation: a rank posts a receive one pass ahead and waits for a send before the next one.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.autograd.graph import get_gradient_edge


@dataclass(frozen=True)
class Pass:
    """One micro-batch forward or backward through one chunk."""

    backward: bool
    chunk: int
    micro_batch: int


def passes_of(rank, ranks, chunks, micro_batches):
    """The passes of a rank, in order. Micro-batches go through a chunk `ranks` at a time, before the next chunk."""

    def numbered(number, backward=False):
        chunk = number // ranks % chunks
        micro_batch = number // (ranks * chunks) * ranks + number % ranks
        return Pass(backward, chunks - 1 - chunk if backward else chunk, micro_batch)

    total = chunks * micro_batches
    warm_up = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
    order = [numbered(number) for number in range(warm_up)]
    for number in range(total - warm_up):
        order += [numbered(warm_up + number), numbered(number, backward=True)]
    return order + [numbered(number, backward=True) for number in range(total - warm_up, total)]


class Chunks(nn.ModuleList):
    """The chunks of a rank, as one model for the optimizer."""

    @property
    def tensor(self):
        return self[0].tensor

    def partial(self):
        return [parameter for chunk in self for parameter in chunk.partial()]


class Link:
    """Sends tensors to the next (step 1) or the previous rank (step -1) of a ring, and receives them from the other.

    NCCL runs the messages of a group in order. Even and odd senders use different groups, so that a rank only sends or
    only receives in a group, and neither waits for the other.
    """

    def __init__(self, columns, step, buffer):
        os.environ["TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"] = "false"  # order is wanted here
        self.groups = [dist.new_subgroups_by_enumeration(columns)[0] for _ in range(2)]
        self.rank, self.ranks = dist.get_rank(self.groups[0]), dist.get_world_size(self.groups[0])
        self.step, self.buffer, self.sending = step, buffer, None

    def send(self, x):
        self.finish()
        group = self.groups[self.rank % 2]
        self.sending = dist.isend(
            x.contiguous(), dist.get_global_rank(group, (self.rank + self.step) % self.ranks), group
        )

    def finish(self):
        if self.sending:
            self.sending.wait()
        self.sending = None

    def receive(self):
        sender = (self.rank - self.step) % self.ranks
        group = self.groups[sender % 2]
        x = self.buffer()
        return x, dist.irecv(x, dist.get_global_rank(group, sender), group)


class InterleavedPipeline:
    def __init__(self, model, columns, buffer, fetch):
        """`columns`: the ranks of every pipeline; `buffer`: makes a tensor to receive into."""
        self.model, self.fetch = model, fetch
        self.links = Link(columns, 1, buffer), Link(columns, -1, buffer)  # activations, gradients
        self.rank, self.ranks = self.links[0].rank, self.links[0].ranks

    def is_first(self, each):
        return self.rank == each.chunk == 0

    def is_last(self, each):
        return self.rank == self.ranks - 1 and each.chunk == len(self.model) - 1

    def step(self, batches, optimizer):
        """Runs all micro-batches; returns the sum of the losses, on the last rank."""
        order = passes_of(self.rank, self.ranks, len(self.model), len(batches))
        losses, inside = [], {}

        def forward(each, x):
            first, last = self.is_first(each), self.is_last(each)
            tokens, targets = self.fetch(batches[each.micro_batch]) if first or last else (None, None)
            if each.micro_batch == 0:
                optimizer.finish_gather(self.model[each.chunk])
            y = self.model[each.chunk](tokens if first else x.requires_grad_(), targets)
            if last:
                y = y / len(batches)
                losses.append(y.detach())
            else:
                self.links[0].send(y.detach())
            inside[each.chunk, each.micro_batch] = x, get_gradient_edge(y)  # y itself is not needed any more

        def backward(each, gradient):
            optimizer.last_micro_batch = each.micro_batch == len(batches) - 1
            x, y = inside.pop((each.chunk, each.micro_batch))
            torch.autograd.backward(y, gradient)
            if not self.is_first(each):
                self.links[1].send(x.grad)

        arriving = self.post(order[0])
        for each, following in zip(order, [*order[1:], None], strict=True):
            x, work = arriving
            arriving = self.post(following)
            if work:
                work.wait()
            (backward if each.backward else forward)(each, x)
        for link in self.links:
            link.finish()
        return torch.stack(losses).sum() if losses else None

    def post(self, each):
        """Receive the input of a pass; (None, None) if it has none."""
        if each is None or (self.is_last(each) if each.backward else self.is_first(each)):
            return None, None
        return self.links[each.backward].receive()
