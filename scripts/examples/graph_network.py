"""Train a graph convolutional network, whose adjacency matrix is sparse."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, adjacency, x):
        return torch.sparse.mm(adjacency, self.linear(x))


class GraphNetwork(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = GraphConvolution(features, hidden)
        self.second = GraphConvolution(hidden, classes)

    def forward(self, adjacency, x):
        return self.second(adjacency, F.relu(self.first(adjacency, x)))


def random_graph(nodes, degree):
    """Every node with edges to itself and to `degree` others, weighted so that a node takes the mean."""
    sources = torch.arange(nodes).repeat_interleave(degree + 1)
    targets = (sources + torch.arange(degree + 1).repeat(nodes) * 7) % nodes
    weights = torch.full((len(sources),), 1.0 / (degree + 1))
    edges = torch.stack([sources, targets])
    return torch.sparse_coo_tensor(edges, weights, (nodes, nodes)).coalesce()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=20000)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--layout", choices=["coo", "csr"], default="coo")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    adjacency = random_graph(args.nodes, args.degree).to(device)
    if args.layout == "csr":
        adjacency = adjacency.to_sparse_csr()
    print(f"{adjacency.shape[0]} nodes, {adjacency.values().numel()} edges")
    x = torch.randn(args.nodes, args.features).to(device)
    labels = torch.randint(args.classes, (args.nodes,)).to(device)
    model = GraphNetwork(args.features, args.hidden, args.classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step in range(args.steps):
        loss = F.cross_entropy(model(adjacency, x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
