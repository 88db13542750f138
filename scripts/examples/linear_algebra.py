"""Train four small models, each of which differentiates through a matrix factorisation."""

import argparse

import torch


def gaussian_process(x, y, parameter):
    """Cholesky: the negative log likelihood of y under a kernel with learned length scales."""
    scaled = x * parameter[0].exp()
    covariance = torch.exp(-0.5 * (scaled[:, None] - scaled[None]).square().sum(-1))
    factor = torch.linalg.cholesky(covariance + 0.1 * torch.eye(len(x), device=x.device))
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    return 0.5 * white.square().sum() + factor.diagonal().log().sum()


def subspace(x, y, parameter):
    """QR: the error of projecting x onto a learned subspace."""
    basis, _ = torch.linalg.qr(parameter[:, : parameter.shape[1] // 2])
    return (x - x @ basis @ basis.T).square().mean()


def low_rank(x, y, parameter):
    """SVD: a linear regression whose weight matrix has a small nuclear norm."""
    left, singular_values, right = torch.linalg.svd(parameter, full_matrices=False)
    fitted = x @ (left * singular_values) @ right
    return (fitted.sum(dim=1) - y).square().mean() + 1e-3 * singular_values.sum()


def whitening(x, y, parameter):
    """Eigenvalues: the distance of the features' covariance from the identity, measured in its own eigenvectors."""
    features = x @ parameter
    values, vectors = torch.linalg.eigh(features.T @ features / len(x))
    white = features @ vectors / (values + 1.0).sqrt()
    return (white.square().mean(dim=0) - 1.0).square().mean() + values.log1p().square().mean()


MODELS = {"cholesky": gaussian_process, "qr": subspace, "svd": low_rank, "eigh": whitening}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    device = torch.device(args.device)
    for name, model in MODELS.items():
        torch.manual_seed(0)
        x = torch.randn(args.samples, args.size).to(device)
        y = x.sum(dim=1).sin()
        parameter = (torch.randn(args.size, args.size) / args.size**0.5).to(device).requires_grad_()
        optimizer = torch.optim.Adam([parameter], lr=1e-2)
        for step in range(args.steps):
            loss = model(x, y, parameter)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{name}  step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
