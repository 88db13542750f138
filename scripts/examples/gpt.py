"""Train a small GPT on random tokens: a single file, as an ML engineer would write it for one GPU."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(batch, sequence, hidden))


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, sequence, layers, hidden, heads, checkpointing=False):
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(model, args, device):
    on_gpu = device.type == "cuda"
    dtype = getattr(torch, args.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=on_gpu)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    if args.compile:
        model = torch.compile(model)

    for step in range(args.steps):
        start = time.perf_counter()
        tokens = torch.randint(args.vocabulary, (args.batch, args.sequence + 1)).to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        line = f"step {step}  loss {loss.item():.4f}  norm {norm.item():.4f}  {time.perf_counter() - start:.2f} s"
        if scaler.is_enabled():
            line += f"  scale {scaler.get_scale():g}"
        if on_gpu:
            line += f"  max memory {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB"
        print(line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16", help="autocast")
    parser.add_argument("--attention", choices=sorted(ATTENTION), help="default: PyTorch's choice")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations in backward")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", metavar="FILE", help="write a torch.profiler trace")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    if device.type == "cuda":
        print(f"{torch.cuda.get_device_name(device)}, {torch.cuda.mem_get_info(device)[1] / 2**30:.1f} GiB")

    model = GPT(args.vocabulary, args.sequence, args.layers, args.hidden, args.heads, args.checkpoint).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    with sdpa_kernel(ATTENTION[args.attention] if args.attention else list(ATTENTION.values())):
        if args.profile:
            with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
                train(model, args, device)
            profiler.export_chrome_trace(args.profile)
            print(f"profile in {args.profile}")
        else:
            train(model, args, device)


if __name__ == "__main__":
    main()
