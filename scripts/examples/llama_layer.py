"""One layer of Llama-3 8B in bf16, forward and backward, on one GPU, with the time of a step as CUDA events give it."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryEmbedding(nn.Module):
    def __init__(self, head, sequence, base=500000.0):
        super().__init__()
        frequencies = base ** (-torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(sequence).float(), frequencies)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x):
        left, right = x.chunk(2, dim=-1)
        return x * self.cos.to(x.dtype) + torch.cat([-right, left], dim=-1) * self.sin.to(x.dtype)


class Layer(nn.Module):
    """Attention with grouped queries, then a SwiGLU feed-forward, each after an RMSNorm and added to its input."""

    def __init__(self, hidden, heads, kv_heads, intermediate, sequence):
        super().__init__()
        self.head = hidden // heads
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.q = nn.Linear(hidden, heads * self.head, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.output = nn.Linear(heads * self.head, hidden, bias=False)
        self.feed_forward_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)
        self.rotary = RotaryEmbedding(self.head, sequence)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).flatten(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    layer = Layer(args.hidden, args.heads, args.kv_heads, args.intermediate, args.sequence)
    x = torch.randn(args.batch, args.sequence, args.hidden, requires_grad=True)
    gradient = torch.randn_like(x)
    for step in range(args.steps):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        layer.zero_grad(set_to_none=True)
        before.record()
        with torch.profiler.record_function("step"):
            layer(x).backward(gradient)
        after.record()
        torch.cuda.synchronize()
        print(f"step {step}  {before.elapsed_time(after):.2f} ms")


if __name__ == "__main__":
    main()
