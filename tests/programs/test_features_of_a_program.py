"""Every launch of a program that uses one of everything becomes a kernel with sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features import TracedKernel, kernels_of
from maya.estimators.kernel import Kernel, KernelClass, Origin
from maya.trace import read

ONE_OF_EVERYTHING = """
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    device = torch.device("cuda")
    table = torch.nn.Embedding(1000, 256, device=device)
    norm = torch.nn.LayerNorm(256, device=device)
    linear = torch.nn.Linear(256, 512, device=device, dtype=torch.bfloat16)
    tokens = torch.randint(1000, (8, 128), device=device)
    x = norm(table(tokens))
    heads = x.to(torch.bfloat16).view(8, 128, 4, 64).transpose(1, 2)
    y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    z = linear(y.transpose(1, 2).reshape(8, 128, 256))
    loss = F.cross_entropy(z.float().flatten(0, 1), tokens.flatten() % 512)
    loss.backward()

    parameters = [torch.zeros(300, 1000, device=device, requires_grad=True) for _ in range(40)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(parameters, fused=True).step()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    a = torch.ones(1024, 2048, device=device)
    b = a + a[:1]
    c = torch.cat([a, b]).sum(0)
    d = a.t().contiguous()
    e = a.sort(dim=1).values.topk(5).values
    g = F.dropout(a, 0.5)
    h = a[torch.arange(10, device=device)]
    image = torch.ones(8, 16, 32, 32, device=device, requires_grad=True)
    weight = torch.ones(32, 16, 3, 3, device=device, requires_grad=True)
    F.max_pool2d(F.batch_norm(F.conv2d(image, weight, padding=1), None, None, training=True), 2).sum().backward()
    torch.nn.LSTM(64, 128, device=device)(torch.ones(20, 4, 64, device=device))
    torch.fft.rfft2(a)
    torch.linalg.cholesky(torch.eye(64, device=device))
    print("done", torch.ones(3, device=device).cpu().sum().item())
"""


def test_every_launch_of_a_program_becomes_a_kernel(maya_run: Callable[..., object]) -> None:
    run = maya_run(ONE_OF_EVERYTHING, "--gpu", "h100")
    assert run.exit_code == 0, run.output  # type: ignore[attr-defined]
    traced = kernels_of(read(run.trace))  # type: ignore[attr-defined]
    works = traced.kernels

    kinds = {item.kernel.kind for item in works}
    # Triton is the one kind that only compiled programs have.
    assert kinds == set(KernelClass) - {KernelClass.TRITON, KernelClass.UNKNOWN}, kinds ^ set(KernelClass)
    assert sum(item.count for item in works) == len(traced.records) == len(traced.which)

    (product,) = {_size(w) for w in _of(works, KernelClass.GEMM) if w.variant == "TN" and w.shape["n"] == 512}
    assert product == (1024, 512, 256)
    flash = next(w for w in _of(works, KernelClass.ATTENTION) if w.variant.endswith("_forward"))
    assert flash.shape["causal"] == 1.0
    assert flash.flops == pytest.approx(4 * 8 * 4 * 64 * 128 * 129 / 2)

    # The parts of a fused optimizer add up to one pass: four lists are read, three written.
    adam = [item for item in works if item.kernel.variant == "fused_adamw"]
    assert sum(item.kernel.bytes_read * item.count for item in adam) == pytest.approx(40 * 300_000 * 4 * 4)
    assert sum(item.kernel.bytes_written * item.count for item in adam) == pytest.approx(40 * 300_000 * 4 * 3)

    norms = {w.variant: w for w in _of(works, KernelClass.NORM)}
    of_layer = {"rows": 1024.0, "columns": 256.0, "has_mean": 1.0, "threads": 128.0}
    assert norms["layer_norm_forward"].shape == of_layer
    assert norms["layer_norm_backward"].bytes_read > 2 * 1024 * 256 * 4
    assert norms["layer_norm_backward_parameters"].bytes_written < 1024 * 256 * 4

    forward = next(w for w in _of(works, KernelClass.CONVOLUTION) if w.variant == "forward")
    assert forward.flops == 2 * 8 * 32 * 32 * 32 * 16 * 9
    assert {w.variant for w in _of(works, KernelClass.CONVOLUTION)} == {"forward", "dgrad", "wgrad"}
    assert any(w.variant == "transposed" for w in _of(works, KernelClass.COPY))

    estimator = Estimator(load_device("h100"))
    estimates = estimator.estimate([item.kernel for item in works])

    assert all(estimate.ns >= 1000 and estimate.spread > 0 for estimate in estimates)
    assert not any(estimate.origin is Origin.DEFAULT for estimate in estimates)


def _of(works: list[TracedKernel], kind: KernelClass) -> list[Kernel]:
    return [item.kernel for item in works if item.kernel.kind is kind]


def _size(work: Kernel) -> tuple[float, ...]:
    return tuple(work.shape[name] for name in ("m", "n", "k"))
