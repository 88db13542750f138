"""Context parallelism of train_gpt.py (--context): each rank has a part of every sequence.

A sequence is cut into twice as many chunks as there are ranks. Rank r has chunk r and chunk r from the end, so that the
causal mask leaves all ranks the same number of pairs. For attention, keys and values of all ranks are gathered, as in
Llama 3, and gathered again in backward instead of kept. One kernel takes both chunks, as two packed sequences.
"""

import torch
import torch.distributed as dist


class Context:
    """The ranks that share a sequence, and the part of this rank."""

    def __init__(self, group, size, rank, sequence):
        self.group, self.size, self.sequence, self.chunk = group, size, sequence, sequence // (2 * size)
        self.chunks = rank, 2 * size - 1 - rank
        rows = torch.arange(self.chunk)
        places = [torch.cat([self.place(each) + rows for each in range(chunk + 1)]) for chunk in self.chunks]
        self.seen = torch.cat(places)  # rows of the gathered keys that the first chunk sees, then the second
        self.queries = torch.tensor([0, self.chunk, 2 * self.chunk], dtype=torch.int32)
        self.keys = torch.tensor([0, len(places[0]), len(self.seen)], dtype=torch.int32)

    def place(self, chunk):
        """Where a chunk begins among the gathered rows, in the order of ranks."""
        rank, second = min(chunk, 2 * self.size - 1 - chunk), chunk >= self.size
        return (2 * rank + second) * self.chunk

    def to(self, device):
        self.seen, self.queries, self.keys = (each.to(device) for each in (self.seen, self.queries, self.keys))
        return self

    def part(self, x, dim):
        parts = x.split(self.chunk, dim)
        return torch.cat([parts[chunk] for chunk in self.chunks], dim)

    def gather(self, k, v):
        """The keys and values that this rank's queries see."""
        mine = torch.stack([k, v], dim=1)
        whole = mine.new_empty(self.size * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(whole, mine, group=self.group)
        return whole.index_select(0, self.seen).unbind(1)

    def reduce(self, of_k, of_v):
        """The gradients of this rank's keys and values."""
        whole = of_k.new_zeros(self.sequence, 2, *of_k.shape[1:])
        whole.index_add_(0, self.seen, torch.stack([of_k, of_v], dim=1))
        mine = whole.new_empty(self.sequence // self.size, *whole.shape[1:])
        dist.reduce_scatter_tensor(mine, whole, group=self.group)
        return mine.unbind(1)


class ContextAttention(torch.autograd.Function):
    """Causal attention; query, key and value are (sequence, heads, head size)."""

    @staticmethod
    def forward(context, q, k, v, ranks):
        context.ranks = ranks
        lengths = ranks.queries, ranks.keys, ranks.chunk, ranks.sequence
        y, *rest = torch.ops.aten._flash_attention_forward(q, *ranks.gather(k, v), *lengths, 0.0, True, False)
        context.save_for_backward(q, k, v, y, *rest[:3])  # log-sum-exp and random state
        return y

    @staticmethod
    def backward(context, gradient):
        q, k, v, y, scale, *random = context.saved_tensors
        ranks = context.ranks
        lengths = ranks.queries, ranks.keys, ranks.chunk, ranks.sequence
        of_q, of_k, of_v = torch.ops.aten._flash_attention_backward(
            gradient, q, *ranks.gather(k, v), y, scale, *lengths, 0.0, True, *random
        )
        return of_q, *ranks.reduce(of_k, of_v), None
