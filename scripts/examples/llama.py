"""Train a Llama-3 shaped model (8B by default) in bf16 with AdamW on one GPU, on random tokens."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotary_angles(sequence, head, base=500000.0):
    frequencies = base ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(sequence).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    even, odd = x.float().chunk(2, dim=-1)
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.head = hidden // heads
        self.q = nn.Linear(hidden, heads * self.head, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head, bias=False)
        self.output = nn.Linear(heads * self.head, hidden, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.hidden, eps=1e-5)
        self.attention = Attention(args.hidden, args.heads, args.kv_heads)
        self.feed_forward_norm = nn.RMSNorm(args.hidden, eps=1e-5)
        self.feed_forward = FeedForward(args.hidden, args.intermediate)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocabulary, args.hidden)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.hidden, eps=1e-5)
        self.head = nn.Linear(args.hidden, args.vocabulary, bias=False)
        cos, sin = rotary_angles(args.sequence, args.hidden // args.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    # Made on the device and in its dtype: 32 GB of float32 in host memory would be wasted.
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Llama(args)
    torch.set_default_dtype(torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    for step in range(args.steps):
        tokens = torch.randint(args.vocabulary, (args.batch, args.sequence + 1), device=device)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        line = f"step {step}  loss {loss.item():.4f}"
        if device.type == "cuda":
            line += f"  max memory {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB"
        print(line)


if __name__ == "__main__":
    main()
