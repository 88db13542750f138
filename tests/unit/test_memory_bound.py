"""Estimates of memory-bound kernels, convolutions, recurrent layers, Fourier transforms and linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

from maya.devices import device_names, load_device
from maya.estimators.estimator import Estimator
from maya.estimators.features.library import convolution_kernel
from maya.estimators.kernel import Kernel, KernelClass, Origin
from maya.estimators.models.bounds import LAUNCH_SECONDS
from maya.estimators.models.curves import Curve, Observation, fit
from maya.estimators.training.curve_training import hold_out
from maya.estimators.training.sources.memory_bound_kernels import (
    copy,
    elementwise,
    norm_backward,
    norm_forward,
    over_rows,
)

SIZES = [2.0**exponent for exponent in range(10, 31, 2)]


@pytest.fixture(params=["a100-80", "h100", "h200", "b200", "v100", "l40s"])
def estimator(request: pytest.FixtureRequest) -> Estimator:
    return Estimator(load_device(request.param))


def families(elements: float, size: int) -> list[Kernel]:
    """One kernel of each class, with this number of elements."""
    dtype = {2: "bf16", 4: "fp32"}[size]
    moved = elements * size
    rows, columns = max(elements / 4096, 1.0), min(elements, 4096.0)
    kernels = [
        elementwise(elements, [size, size], size, variant) for variant in ("vectorized", "strided", "transposed")
    ]
    kernels += [copy(elements, size, size, variant) for variant in ("vectorized", "unrolled", "strided")]
    kernels += [*norm_forward(rows, columns, size, has_mean=False), *norm_backward(rows, columns, size)]
    kernels += [
        over_rows(KernelClass.SOFTMAX, f"softmax_{way}", rows, columns, size, 2, 1) for way in ("forward", "backward")
    ]
    for kind, variant in (
        (KernelClass.REDUCTION, "inner"),
        (KernelClass.OPTIMIZER, "fused_adamw"),
        (KernelClass.EMBEDDING, "forward"),
        (KernelClass.INDEX, "strided"),
        (KernelClass.SORT, "DeviceRadixSortOnesweepKernel"),
        (KernelClass.RANDOM, "fused_dropout_kernel"),
        (KernelClass.MEMSET, "memset"),
        (KernelClass.TRITON, "pointwise"),
        (KernelClass.UNKNOWN, "from_op"),
        (KernelClass.TRANSFER, "HtoD"),
    ):
        kernels.append(Kernel(kind, dtype, elements, moved, moved, {"elements": elements}, variant))
    return kernels


def test_never_faster_than_the_memory_and_never_more_than_twice_as_slow_for_twice_as_much(estimator: Estimator) -> None:
    times = np.array([[e.ns for e in estimator.estimate(families(size, 4))] for size in SIZES], dtype=float)
    for size, row in zip(SIZES, times, strict=True):
        for kernel, ns in zip(families(size, 4), row, strict=True):
            moved = kernel.bytes_read + kernel.bytes_written
            assert ns * 1e-9 >= LAUNCH_SECONDS * 0.999 + moved / estimator.device.memory_bandwidth * 0.999, kernel
    assert (np.diff(times, axis=0) >= 0).all()  # more takes longer
    doubled = np.array([[e.ns for e in estimator.estimate(families(2 * size, 4))] for size in SIZES])
    assert (doubled <= 2.2 * times).all()


def test_half_the_bytes_never_take_longer(estimator: Estimator) -> None:
    for size in SIZES:
        wide, narrow = (estimator.estimate(families(size, width)) for width in (4, 2))
        for kernel, slow, fast in zip(families(size, 4), wide, narrow, strict=True):
            assert fast.ns <= slow.ns, kernel


def test_estimates_name_their_origin() -> None:
    estimator = Estimator(load_device("h100"))
    own, relative, like, host = estimator.estimate(
        [
            elementwise(1e7, [4, 4], 4),
            over_rows(KernelClass.SOFTMAX, "softmax_forward", 4096, 4096, 2, 1, 1),
            Kernel(KernelClass.OPTIMIZER, "fp32", 1e7, 16e7, 12e7, {"elements": 1e7}, "fused_adamw"),
            Kernel(KernelClass.TRANSFER, "uint8", 0.0, 1e8, 1e8, {"bytes": 1e8}, "HtoD_pageable"),
        ]
    )

    assert (own.origin, own.note) == (Origin.MODEL, "")
    assert relative.origin is Origin.ROOFLINE
    assert relative.note.startswith("efficiency as measured on a100")
    assert "times slower than elementwise/vectorized" in like.note
    assert "pageable" in host.note
    assert host.ns > 1e8 / 64e9 * 1e9


def test_every_device_has_estimates_for_every_kernel_class() -> None:
    convolution = convolution_kernel(
        "tf32", [32, 64, 56, 56], [128, 64, 3, 3], [32, 128, 56, 56], stride=[1], groups=1, variant="forward"
    )
    others = [
        convolution,
        Kernel(
            KernelClass.RNN, "fp16", 1e9, 1e7, 1e7, {"steps": 50, "hidden": 512, "gates": 4, "layers": 1}, "forward"
        ),
        Kernel(
            KernelClass.FFT, "complex64", 1e9, 1e8, 1e8, {"points": 65536, "batch": 100, "dimensions": 2}, "complex"
        ),
        Kernel(
            KernelClass.LINEAR_ALGEBRA, "fp32", 1e9, 1e6, 1e6, {"m": 512, "n": 512, "batch": 1, "steps": 16}, "potrf"
        ),
        Kernel(KernelClass.LINEAR_ALGEBRA, "fp32", 1e9, 1e6, 1e6, {"rows": 512, "nonzeros": 9}, "sparse_product"),
    ]
    for key in device_names():
        estimator = Estimator(load_device(key))
        estimates = estimator.estimate([*families(1e6, 2), *others])

        assert all(estimate.ns > 1000 and 0 < estimate.spread < 1 for estimate in estimates)
        assert all(estimate.origin in (Origin.MODEL, Origin.ROOFLINE) for estimate in estimates)


def test_curves_are_found_again_from_ops_of_several_kernels() -> None:
    """Two families that are only ever measured alone or together, with what measuring costs on top."""
    device = load_device("h100")
    plain = Curve("bytes", (18.0, 30.0), (1.4, 1.1), 2.1e-6)
    rows = Curve("columns", (5.0, 17.0), (2.0, 1.5), 2.7e-6, 0.7e-9, device.sm_count)
    observations = []
    for exponent in range(20, 29):
        for columns in (512.0, 1024.0, 4096.0, 16384.0):
            add = elementwise(2.0**exponent, [4, 4], 4)
            of_rows = over_rows(KernelClass.SOFTMAX, "softmax_forward", 2.0**exponent / columns, columns, 4, 1, 1)
            for kernels in ((add,), (of_rows,), (add, add, of_rows)):
                seconds = 4e-6 + sum(_seconds(plain if w is add else rows, device.memory_bandwidth, w) for w in kernels)
                observations.append(Observation(kernels, seconds, f"columns={columns}", "liger", device))
    curves, overheads = fit(observations)
    assert overheads["h100", "liger"] == pytest.approx(4e-6, rel=0.3)
    assert curves["elementwise/vectorized"].slowdown[-2] == pytest.approx(1.15, abs=0.05)
    held_out = hold_out(observations)
    assert len(held_out.observations) == len(observations)
    assert np.abs(held_out.predicted / held_out.measured - 1).mean() < 0.06
    again = Curve.from_json(curves["elementwise/vectorized"].as_json())
    assert again.slowdown == pytest.approx(curves["elementwise/vectorized"].slowdown, abs=1e-4)


def _seconds(curve: Curve, bandwidth: float, kernel: Kernel) -> float:
    moved = kernel.bytes_read + kernel.bytes_written
    along = kernel.shape["columns"] if curve.axis == "columns" else moved
    slowdown = float(np.interp(np.log2(along), curve.knots, curve.slowdown))
    return curve.start_seconds + kernel.shape.get("rows", 0.0) * curve.row_seconds + moved / bandwidth * slowdown
