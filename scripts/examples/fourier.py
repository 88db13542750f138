"""Train a small Fourier neural operator: a network on the low frequencies of a field."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConvolution(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, modes, dtype=torch.cfloat) / channels)

    def forward(self, x):
        frequencies = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", frequencies[:, :, : self.modes, : self.modes], self.weight)
        result = torch.zeros_like(frequencies)
        result[:, :, : self.modes, : self.modes] = low
        return torch.fft.irfft2(result, s=x.shape[-2:])


class FourierOperator(nn.Module):
    def __init__(self, channels, modes, layers):
        super().__init__()
        self.lift = nn.Conv2d(1, channels, 1)
        self.spectral = nn.ModuleList(SpectralConvolution(channels, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.project = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grid", type=int, default=128)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--modes", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    model = FourierOperator(args.channels, args.modes, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(args.steps):
        field = torch.randn(args.batch, 1, args.grid, args.grid).to(device)
        loss = F.mse_loss(model(field), field.roll(1, dims=-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
