"""The model of train_gpt.py: a transformer in the manner of GPT, Llama or BERT, cut by hand as Megatron-LM does it.

Activations are (sequence, batch, hidden). Tensor parallel: every layer is split in two places, by the outputs of its
first matmuls (`SplitOutputs`) and by the inputs of its second ones (`SplitInputs`). Sequence parallelism also splits
the activations between them by sequence. Pipeline parallel: `Transformer` has only some of the layers. Context
parallel: each rank has a part of the sequence (train_gpt_context.py).
"""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from train_gpt_context import ContextAttention
from train_gpt_megatron import RANDOM, Copied, LayerNorm, Recomputed, Softmax, SumWithDropout


@dataclass(frozen=True)
class Tensor:
    """The ranks among which each layer is split."""

    group: object = None
    size: int = 1
    rank: int = 0
    by_sequence: bool = False  # whether to split activations between the layers as well
    keep: bool = False  # whether to keep gathered tensors for backward instead of gathering them again
    overlap: bool = False  # whether to overlap backward's communication with the weight gradient
    accumulate: bool = False  # whether the matmul of a weight gradient adds to the sum over micro-batches


def gather(x, tensor, wait=True):
    whole = x.new_empty(tensor.size * x.shape[0], *x.shape[1:])
    work = dist.all_gather_into_tensor(whole, x.contiguous(), group=tensor.group, async_op=not wait)
    return whole if wait else (whole, work)


def reduce(x, tensor, wait=True):
    """The sum over the ranks: all of it, or this rank's part of the sequence."""
    x = x.contiguous()
    if not tensor.by_sequence:
        work = dist.all_reduce(x, group=tensor.group, async_op=not wait)
        return x if wait else (x, work)
    part = x.new_empty(x.shape[0] // tensor.size, *x.shape[1:])
    work = dist.reduce_scatter_tensor(part, x, group=tensor.group, async_op=not wait)
    return part if wait else (part, work)


PLACEHOLDERS = {}  # by shape and dtype


def gradient_of_weight(weight, rows, x, tensor):
    """A placeholder for autograd if the gradient is in the sum already: like Transformer Engine's, one for all weights
    of a shape."""
    x = x.flatten(0, -2)
    if not tensor.accumulate:
        return rows.T @ x
    wider = {} if x.dtype == weight.sum.dtype else {"out_dtype": weight.sum.dtype}
    torch.addmm(weight.sum, rows.T, x, out=weight.sum, **wider)
    weight.is_in_sum = True
    key = weight.shape, weight.dtype
    if key not in PLACEHOLDERS:
        PLACEHOLDERS[key] = torch.empty_like(weight)
    return PLACEHOLDERS[key].detach()


class AccumulatingProduct(torch.autograd.Function):
    """x @ weight.T; the weight carries the sum of its gradients as an attribute."""

    @staticmethod
    def forward(context, x, weight, tensor):
        context.weight, context.tensor = weight, tensor
        context.save_for_backward(x)
        return F.linear(x, weight)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        of_x = gradient @ context.weight
        return of_x, gradient_of_weight(context.weight, gradient.flatten(0, -2), x, context.tensor), None


def product(x, weight, bias, tensor):
    if not tensor.accumulate:
        return F.linear(x, weight, bias)
    y = AccumulatingProduct.apply(x, weight, tensor)
    return y if bias is None else y + bias


class GatedProduct(torch.autograd.Function):
    """(silu(gate) * up) @ weight.T, which keeps gate and up only and multiplies them again in backward."""

    @staticmethod
    def forward(context, gate_and_up, weight, tensor):
        context.weight, context.tensor = weight, tensor
        context.save_for_backward(gate_and_up)
        gate, up = gate_and_up.chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, weight)

    @staticmethod
    def backward(context, gradient):
        gate, up = context.saved_tensors[0].chunk(2, dim=-1)
        opened = F.silu(gate)
        of_product = gradient @ context.weight
        of_weight = gradient_of_weight(context.weight, gradient.flatten(0, -2), opened * up, context.tensor)
        of_gate = torch.ops.aten.silu_backward(of_product * up, gate)
        return torch.cat([of_gate, of_product * opened], dim=-1), of_weight, None


class ProductOfSplitOutputs(torch.autograd.Function):
    """x @ weight.T + bias, where each rank has rows of the weight; backward sums the gradient of x over the ranks."""

    @staticmethod
    def forward(context, x, weight, bias, tensor):
        context.tensor, context.weight, context.has_bias = tensor, weight, bias is not None
        whole = gather(x, tensor) if tensor.by_sequence else x
        context.save_for_backward(whole if tensor.keep else x)
        return F.linear(whole, weight, bias)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        tensor, weight = context.tensor, context.weight
        work = None
        if tensor.by_sequence and not tensor.keep:
            x, work = gather(x, tensor, wait=False)
        of_x = gradient @ weight
        if work:
            work.wait()
        of_x, work = reduce(of_x, tensor, wait=False)
        if not tensor.overlap:
            work.wait()
        rows = gradient.flatten(0, -2)
        of_weight = gradient_of_weight(weight, rows, x, tensor)
        of_bias = rows.sum(0) if context.has_bias else None
        if tensor.overlap:
            work.wait()
        return of_x, of_weight, of_bias, None


class Sum(torch.autograd.Function):
    """`reduce` of the ranks' partial sums; each rank gets the whole gradient."""

    @staticmethod
    def forward(context, x, tensor):
        context.tensor = tensor
        return reduce(x, tensor)

    @staticmethod
    def backward(context, gradient):
        return gather(gradient, context.tensor) if context.tensor.by_sequence else gradient, None


class SplitOutputs(nn.Linear):
    def __init__(self, inputs, outputs, tensor, bias=True, megatron=False):
        super().__init__(inputs, outputs // tensor.size, bias)
        self.tensor, self.megatron = tensor, megatron

    def forward(self, x):
        if self.tensor.size == 1:
            return product(Copied.apply(x) if self.megatron else x, self.weight, self.bias, self.tensor)
        return ProductOfSplitOutputs.apply(x, self.weight, self.bias, self.tensor)


class SplitInputs(nn.Linear):
    def __init__(self, inputs, outputs, tensor, bias=True, megatron=False):
        super().__init__(inputs // tensor.size, outputs, bias)
        self.tensor, self.megatron = tensor, megatron

    def forward(self, x):
        if self.megatron:  # the bias costs nothing here; the next op computes its gradient
            y = product(x, self.weight, self.bias.detach() / self.tensor.size, self.tensor)
            return Sum.apply(y, self.tensor) if self.tensor.size > 1 else y
        if self.tensor.size == 1:
            return product(x, self.weight, self.bias, self.tensor)
        y = Sum.apply(product(x, self.weight, None, self.tensor), self.tensor)
        return y if self.bias is None else y + self.bias


class SplitEmbedding(nn.Embedding):
    """Each rank has some of the vocabulary."""

    def __init__(self, vocabulary, hidden, tensor):
        super().__init__(-(-vocabulary // tensor.size), hidden)
        self.tensor = tensor

    def forward(self, tokens):
        if self.tensor.size == 1:
            return super().forward(tokens)
        mine = tokens - self.tensor.rank * self.num_embeddings
        elsewhere = (mine < 0) | (mine >= self.num_embeddings)
        x = super().forward(mine.masked_fill(elsewhere, 0))
        return Sum.apply(x.masked_fill(elsewhere.unsqueeze(-1), 0), self.tensor)


class SplitCrossEntropy(torch.autograd.Function):
    """The mean loss; each rank has the logits of some of the vocabulary."""

    @staticmethod
    def forward(context, logits, targets, tensor):
        context.dtype = logits.dtype
        logits = logits.to(torch.float32, copy=True)
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, tensor.group)
        logits -= largest.unsqueeze(-1)
        mine = targets - tensor.rank * logits.shape[-1]
        elsewhere = (mine < 0) | (mine >= logits.shape[-1])
        mine = mine.masked_fill(elsewhere, 0)
        wanted = logits.gather(-1, mine.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0)
        dist.all_reduce(wanted, group=tensor.group)
        total = logits.exp_().sum(-1)
        dist.all_reduce(total, group=tensor.group)
        context.save_for_backward(logits.div_(total.unsqueeze(-1)), mine, elsewhere)
        return (total.log() - wanted).mean()

    @staticmethod
    def backward(context, gradient):
        probabilities, mine, elsewhere = context.saved_tensors
        probabilities.scatter_add_(-1, mine.unsqueeze(-1), elsewhere.to(torch.float32).sub_(1).unsqueeze(-1))
        return probabilities.mul_(gradient / mine.numel()).to(context.dtype), None, None


class InPlaceCrossEntropy(torch.autograd.Function):
    """The mean loss; the gradient overwrites the logits, and only some rows at a time are in float32."""

    @staticmethod
    def forward(context, logits, targets):
        losses = []
        for rows, wanted in zip(logits.chunk(16), targets.chunk(16), strict=True):
            shares = rows.float().log_softmax(-1)
            losses.append(F.nll_loss(shares, wanted, reduction="sum"))
            shares.exp_().scatter_add_(
                -1, wanted.unsqueeze(-1), -torch.ones_like(wanted, dtype=torch.float32).unsqueeze(-1)
            )
            rows.copy_(shares)
        context.save_for_backward(logits)
        return torch.stack(losses).sum() / len(targets)

    @staticmethod
    def backward(context, gradient):
        (logits,) = context.saved_tensors
        return logits.mul_(gradient / len(logits)), None


def rotary_angles(sequence, head, base=500000.0):
    angles = torch.outer(torch.arange(sequence).float(), base ** (-torch.arange(0, head, 2).float() / head))
    angles = torch.cat([angles, angles], dim=-1)[:, None, None, :]
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([-right, left], dim=-1), sin)


class Attention(nn.Module):
    def __init__(self, shape, tensor, bias):
        super().__init__()
        self.head, self.causal, self.dropout = shape.hidden // shape.heads, shape.family != "bert", shape.dropout
        self.kind, self.megatron, self.lean = shape.attention, shape.megatron, shape.recompute == "gate"
        self.heads, self.kv_heads = shape.heads // tensor.size, shape.kv_heads // tensor.size
        outputs = (shape.heads + 2 * shape.kv_heads) * self.head
        self.qkv = SplitOutputs(shape.hidden, outputs, tensor, bias, shape.megatron)
        self.output = SplitInputs(shape.hidden, shape.hidden, tensor, bias, shape.megatron)
        if shape.megatron:  # rows of a head are adjacent
            for part in (self.qkv.weight, self.qkv.bias):
                part.data = part.data.unflatten(0, (3, self.heads, self.head)).transpose(0, 1).flatten(0, 2)

    def forward(self, x, cos=None, sin=None, context=None):
        if self.megatron:
            return self.output(self.attention_in_place(x))
        heads = self.qkv(x).unflatten(-1, (-1, self.head))
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if cos is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            v = v.clone() if self.lean else v  # backward would keep the whole output of the matmul for it
        if context:
            y = ContextAttention.apply(q.squeeze(1), k.squeeze(1), v.squeeze(1), context)
            return self.output(y.flatten(1).unsqueeze(1))
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
        y = self.attention(q, k, v) if self.kind == "unfused" else self.fused_attention(q, k, v)
        return self.output(y.permute(2, 0, 1, 3).flatten(2))

    def fused_attention(self, q, k, v):
        chance = self.dropout if self.training else 0.0
        grouped = self.heads != self.kv_heads
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) if self.kind == "efficient" else contextlib.nullcontext():
            return F.scaled_dot_product_attention(q, k, v, dropout_p=chance, is_causal=self.causal, enable_gqa=grouped)

    def attention(self, q, k, v):
        """Attention before FlashAttention: two matmuls with a softmax between them. Models the time only: it omits the
        causal mask, which Megatron-LM's own softmax kernel applies at no extra cost."""
        batch, heads, sequence, head = q.shape
        q, k, v = (part.reshape(batch * heads, sequence, head) for part in (q, k, v))
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0.0, alpha=head**-0.5)
        shares = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return torch.bmm(shares, v).view(batch, heads, sequence, head)

    def attention_in_place(self, x):
        """The same as Megatron-LM does it: query, key and value of a head are adjacent, so that the batched matmuls
        over all heads and sequences need no copy."""
        sequence, batch, _ = x.shape
        parts = self.qkv(x).view(sequence, batch * self.heads, 3 * self.head).chunk(3, dim=-1)
        q, k, v = (part.transpose(0, 1) for part in parts)
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0.0, alpha=self.head**-0.5)
        shares = Softmax.apply(scores)
        with RANDOM.fork():
            shares = F.dropout(shares, self.dropout, self.training)
        y = torch.bmm(shares, v).view(batch, self.heads, sequence, self.head)
        return y.permute(2, 0, 1, 3).flatten(2)


class FeedForward(nn.Module):
    def __init__(self, shape, tensor, bias):
        super().__init__()
        self.gated, self.recompute_gate = shape.family == "llama", shape.recompute == "gate"
        self.up = SplitOutputs(shape.hidden, (2 if self.gated else 1) * shape.ffn, tensor, bias, shape.megatron)
        self.down = SplitInputs(shape.ffn, shape.hidden, tensor, bias, shape.megatron)

    def forward(self, x):
        x = self.up(x)
        if self.gated and self.recompute_gate:
            y = GatedProduct.apply(x, self.down.weight, self.down.tensor)
            return Sum.apply(y, self.down.tensor) if self.down.tensor.size > 1 else y
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            return self.down(F.silu(gate) * x)
        return self.down(F.gelu(x, approximate="tanh"))


class Block(nn.Module):
    def __init__(self, shape, tensor):
        super().__init__()
        norm, bias = (nn.RMSNorm, False) if shape.family == "llama" else (nn.LayerNorm, True)
        if shape.megatron:
            norm = LayerNorm
        self.norm_first, self.dropout = shape.family != "bert", nn.Dropout(shape.dropout)
        self.megatron = shape.megatron
        self.attention_norm, self.attention = norm(shape.hidden), Attention(shape, tensor, bias)
        self.feed_forward_norm, self.feed_forward = norm(shape.hidden), FeedForward(shape, tensor, bias)

    def forward(self, x, *rotary):
        if self.megatron:
            y, bias = self.attention(self.attention_norm(x)), self.attention.output.bias
            x = SumWithDropout.apply(y, bias, x, self.dropout.p)
            y, bias = self.feed_forward(self.feed_forward_norm(x)), self.feed_forward.down.bias
            return SumWithDropout.apply(y, bias, x, self.dropout.p)
        if self.norm_first:
            x = x + self.dropout(self.attention(self.attention_norm(x), *rotary))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Transformer(nn.Module):
    """Tokens to loss; in a pipeline, tokens to activations, activations to activations, or activations to loss."""

    def __init__(self, shape, tensor, layers, first=True, last=True, context=None):
        """`layers`: a range of their numbers, which seed their values: however the model is cut, it is the same."""
        super().__init__()
        self.shape, self.tensor, self.first, self.last, self.context = shape, tensor, first, last, context
        norm = nn.RMSNorm if shape.family == "llama" else nn.LayerNorm
        if first:
            self.tokens = SplitEmbedding(shape.vocabulary, shape.hidden, tensor)
            if shape.family != "llama":
                self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.blocks = nn.ModuleList()
        for number in layers:
            torch.manual_seed(number)
            self.blocks.append(Block(shape, tensor))
        torch.manual_seed(shape.layers)
        if last:
            self.norm = norm(shape.hidden)
            self.head = SplitOutputs(
                shape.hidden, -(-shape.vocabulary // tensor.size) * tensor.size, tensor, bias=False
            )
            if first and shape.tied:
                self.head.weight = self.tokens.weight
            if shape.family == "bert":
                self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.cos = self.sin = None

    def prepare(self, device, dtype):
        """Initialise the tensors that are not parameters."""
        if self.shape.family == "llama":
            angles = rotary_angles(self.shape.sequence, self.shape.hidden // self.shape.heads)
            if self.context:
                angles = [self.context.part(each, 0) for each in angles]
            self.cos, self.sin = (part.to(device, dtype) for part in angles)

    def partial(self):
        """Parameters that each rank holds whole, but uses on only a part of the sequence."""
        if not self.tensor.by_sequence:
            return []
        norms = [module for module in self.modules() if isinstance(module, (nn.LayerNorm, nn.RMSNorm))]
        biases = [module.bias for module in self.modules() if isinstance(module, SplitInputs)]
        return [*(part for norm in norms for part in norm.parameters()), *(bias for bias in biases if bias is not None)]

    def forward(self, x, targets=None):
        if self.first:
            x = self.embed(x)
        rotary = () if self.cos is None else (self.cos, self.sin, self.context)
        for block in self.blocks:
            if self.shape.megatron:
                x = Recomputed.apply(block, x)
            else:
                x = recomputed(self.shape.recompute, block, x, *rotary)
        return self.loss(x, targets) if self.last else x

    def embed(self, tokens):
        x = self.tokens(tokens.T)
        if self.shape.family != "llama":
            positions = self.positions.weight.unsqueeze(1)
            if self.tensor.by_sequence:
                positions = positions.chunk(self.tensor.size)[self.tensor.rank]
            x = F.dropout(x + positions, self.shape.dropout, self.training)
        return x

    def loss(self, x, targets):
        targets = targets.T
        if self.shape.family == "bert":  # predict only the masked words
            x, targets = x[: self.shape.predictions], targets[: self.shape.predictions]
            x = F.gelu(self.transform(x))
        logits = self.head(self.norm(x))
        if self.tensor.size > 1 or self.shape.megatron:
            return SplitCrossEntropy.apply(logits, targets, self.tensor)
        logits, targets = logits.flatten(0, 1), targets.flatten()
        if self.shape.in_place_loss:
            return InPlaceCrossEntropy.apply(logits, targets)
        return F.cross_entropy(logits.float(), targets)


KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def keep_products(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def recomputed(what, block, *inputs):
    """A block that recomputes some or all of its activations in backward."""
    if what in ("none", "gate"):
        return block(*inputs)
    if what == "all":
        return checkpoint(block, *inputs, use_reentrant=False)
    contexts = lambda: create_selective_checkpoint_contexts(keep_products)  # noqa: E731
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
