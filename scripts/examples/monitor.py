"""Train a small network and watch the GPU, by torch.cuda's monitoring functions and by pynvml."""

import argparse

import pynvml
import torch
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    print(f"{pynvml.nvmlDeviceGetName(handle)}, driver {pynvml.nvmlSystemGetDriverVersion()}")

    model = nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(args.steps):
        x = torch.randn(args.batch, args.hidden, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        print(
            f"step {step}  utilization {torch.cuda.utilization()}%  memory {torch.cuda.memory_usage()}%  "
            f"{memory.used / 2**30:.1f} of {memory.total / 2**30:.1f} GiB  {torch.cuda.temperature()} C  "
            f"{torch.cuda.power_draw() / 1000:.0f} of {limit / 1000:.0f} W  {torch.cuda.clock_rate()} MHz"
        )
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
