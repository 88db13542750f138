"""Train a small network with CUDA graphs: the whole step as one, or the model's forward and backward as two."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def train_step(model, optimizer, x, target):
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


def captured_step(model, optimizer, x, target):
    """A function that trains on the current contents of x and target."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            train_step(model, optimizer, x, target)
    torch.cuda.current_stream().wait_stream(side_stream)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step(model, optimizer, x, target)

    def replay():
        graph.replay()
        return loss

    return replay


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", choices=["step", "callables"], default="step")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.ReLU()) for _ in range(args.layers)]
    model = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(args.hidden, args.classes)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(args.batch, args.hidden, device="cuda")
    target = torch.randint(args.classes, (args.batch,), device="cuda")
    if args.graph == "step":
        step_function = captured_step(model, optimizer, x, target)
    else:
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn_like(x, requires_grad=True),))

        def step_function():
            return train_step(graphed, optimizer, x, target)

    for step in range(args.steps):
        x.copy_(torch.randn(args.batch, args.hidden))
        target.copy_(torch.randint(args.classes, (args.batch,)))
        loss = step_function()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
