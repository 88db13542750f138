"""Every launch of a program that uses one of everything becomes a kernel with sizes."""

from __future__ import annotations

import pytest
from helpers.script_run import MayaRun

from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features import TracedKernels, kernels_of
from maya.estimators.kernel import Estimate, Kernel, KernelClass, Origin
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


@pytest.fixture(scope="module")
def traced(maya_run_once: MayaRun) -> TracedKernels:
    """The kernels of ONE_OF_EVERYTHING."""
    run = maya_run_once(ONE_OF_EVERYTHING, "--gpu", "h100")
    assert run.exit_code == 0, run.output
    return kernels_of(read(run.trace))


@pytest.fixture(scope="module")
def estimates(traced: TracedKernels) -> list[Estimate]:
    return Estimator(load_device("h100")).estimate([item.kernel for item in traced.kernels])


def of_class(traced: TracedKernels, kernel_class: KernelClass) -> list[Kernel]:
    return [item.kernel for item in traced.kernels if item.kernel.kernel_class is kernel_class]


def of_variant(traced: TracedKernels, kernel_class: KernelClass, variant: str) -> Kernel:
    """The first kernel of the variant."""
    return next(kernel for kernel in of_class(traced, kernel_class) if kernel.variant == variant)


def test_every_class_of_kernels_is_recognised(traced: TracedKernels) -> None:
    classes = {item.kernel.kernel_class for item in traced.kernels}
    # Triton is the one class that only compiled programs have.
    assert classes == set(KernelClass) - {KernelClass.TRITON, KernelClass.UNKNOWN}, classes ^ set(KernelClass)


def test_every_launch_becomes_a_kernel(traced: TracedKernels) -> None:
    assert sum(item.count for item in traced.kernels) == len(traced.records) == len(traced.which)


def test_a_gemm_has_its_shape(traced: TracedKernels) -> None:
    gemms = of_class(traced, KernelClass.GEMM)
    sizes = {tuple(kernel.shape[name] for name in ("m", "n", "k")) for kernel in gemms if kernel.variant == "TN"}
    assert [size for size in sizes if size[1] == 512] == [(1024, 512, 256)]


def test_causal_attention_has_half_the_flops(traced: TracedKernels) -> None:
    flash = next(kernel for kernel in of_class(traced, KernelClass.ATTENTION) if kernel.variant.endswith("_forward"))
    assert flash.shape["causal"] == 1.0
    assert flash.flops == pytest.approx(4 * 8 * 4 * 64 * 128 * 129 / 2)


def test_the_parts_of_a_fused_optimizer_add_up_to_one_pass(traced: TracedKernels) -> None:
    """Four lists are read, three written."""
    adam = [item for item in traced.kernels if item.kernel.variant == "fused_adamw"]
    assert sum(item.kernel.bytes_read * item.count for item in adam) == pytest.approx(40 * 300_000 * 4 * 4)
    assert sum(item.kernel.bytes_written * item.count for item in adam) == pytest.approx(40 * 300_000 * 4 * 3)


def test_a_layer_norm_has_its_rows_and_columns(traced: TracedKernels) -> None:
    forward = of_variant(traced, KernelClass.NORM, "layer_norm_forward")
    assert forward.shape == {"rows": 1024.0, "columns": 256.0, "has_mean": 1.0, "threads": 128.0}


def test_the_backward_pass_of_a_layer_norm_reads_more_than_two_tensors(traced: TracedKernels) -> None:
    assert of_variant(traced, KernelClass.NORM, "layer_norm_backward").bytes_read > 2 * 1024 * 256 * 4


def test_the_gradients_of_a_layer_norms_parameters_are_small(traced: TracedKernels) -> None:
    assert of_variant(traced, KernelClass.NORM, "layer_norm_backward_parameters").bytes_written < 1024 * 256 * 4


def test_a_convolution_has_its_flops(traced: TracedKernels) -> None:
    assert of_variant(traced, KernelClass.CONVOLUTION, "forward").flops == 2 * 8 * 32 * 32 * 32 * 16 * 9


def test_a_convolution_has_three_passes(traced: TracedKernels) -> None:
    variants = {kernel.variant for kernel in of_class(traced, KernelClass.CONVOLUTION)}
    assert variants == {"forward", "dgrad", "wgrad"}


def test_a_transpose_is_a_copy(traced: TracedKernels) -> None:
    assert of_variant(traced, KernelClass.COPY, "transposed")


def test_every_kernel_takes_at_least_a_microsecond(estimates: list[Estimate]) -> None:
    assert all(estimate.ns >= 1000 and estimate.spread > 0 for estimate in estimates)


def test_every_kernel_has_a_model(estimates: list[Estimate]) -> None:
    assert not any(estimate.origin is Origin.DEFAULT for estimate in estimates)
