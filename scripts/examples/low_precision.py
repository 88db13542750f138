"""Train a network with 8-bit matmuls: fp8 in forward and backward, or int8 in forward."""

import argparse

import torch
import torch.nn as nn


def quantize(x, dtype):
    """x in 8 bits, and the scale that converts it back."""
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    scale = x.detach().abs().amax().float().clamp(min=1e-12) / largest
    scaled = x.detach().float() / scale
    if not dtype.is_floating_point:
        scaled = scaled.round()
    return scaled.clamp(-largest, largest).to(dtype), scale


def fp8_product(a, b, a_dtype=torch.float8_e4m3fn):
    """a @ b.T; the hardware needs a column-major second operand: the transpose of a contiguous tensor."""
    a8, a_scale = quantize(a.contiguous(), a_dtype)
    b8, b_scale = quantize(b.contiguous(), torch.float8_e4m3fn)
    return torch._scaled_mm(a8, b8.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)


def int8_product(a, b):
    a8, a_scale = quantize(a, torch.int8)
    b8, b_scale = quantize(b, torch.int8)
    return (torch._int_mm(a8, b8.t()).float() * (a_scale * b_scale)).to(a.dtype)


class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return fp8_product(x, weight)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        wide_range = torch.float8_e5m2
        return fp8_product(gradient, weight.t(), wide_range), fp8_product(gradient.t(), x.t(), wide_range)


class Int8Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return int8_product(x, weight)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Linear8(nn.Linear):
    product = None

    def forward(self, x):
        return self.product.apply(x, self.weight) + self.bias


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=["fp8", "int8"], default="fp8")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    Linear8.product = Fp8Product if args.format == "fp8" else Int8Product
    model = nn.Sequential(Linear8(args.hidden, args.hidden), nn.GELU(), Linear8(args.hidden, args.hidden))
    model.to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(args.steps):
        x = torch.randn(args.batch, args.hidden, dtype=torch.bfloat16).to(device)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
