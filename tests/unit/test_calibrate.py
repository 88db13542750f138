"""`maya calibrate` learns from measurements: measured shapes get their measured times, others get close ones."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maya.cli.main import main
from maya.devices import load_device
from maya.estimators.estimator import Estimator
from maya.estimators.kernel import Kernel, KernelClass, Origin
from maya.estimators.models.attention import attention_kernel
from maya.estimators.models.gemm import gemm_kernel
from maya.estimators.pack import Pack
from maya.estimators.training.measurements_file import MeasurementsError, read_measurements

COLUMNS = ("device", "kind", "variant", "dtype", "shape", "flops", "bytes_read", "bytes_written", "time_us")


def half_as_fast(kernel: Kernel) -> float:
    """Microseconds on a GPU that reaches 40 % of an A40's peaks."""
    moved = (kernel.bytes_read + kernel.bytes_written) / 696e9
    return 4.0 + 1e6 * max(kernel.flops / 149.7e12, moved) / 0.4


def some_kernels() -> Iterator[Kernel]:
    for layout in ("TN", "NT"):
        for m in (128, 1024, 4096):
            for n in (1024, 2048, 3072, 4096, 6144, 8192):
                for k in (1024, 4096, 8192):
                    yield gemm_kernel(m, n, k, layout=layout)
    for heads in (4, 8, 12, 16, 24, 32):
        for length in (512, 1024, 2048, 4096):
            yield attention_kernel(2, heads, length, 64, causal=True, implementation="efficient")
    for heads in (4, 8):
        yield attention_kernel(2, heads, 2048, 64, implementation="flash", backward=True)
    for size in (1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8):
        yield Kernel(KernelClass.ELEMENTWISE, "fp32", 0.0, 2 * size, size, {}, "vectorized")
    yield Kernel(KernelClass.SORT, "fp32", 0.0, 4e6, 4e6, {"elements": 1e6}, "radix")


def write(path: Path, kernels: list[Kernel], device: str = "NVIDIA A40") -> Path:
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(COLUMNS)
        for kernel in kernels:
            shape = " ".join(f"{name}={value:g}" for name, value in kernel.shape.items())
            sizes = (kernel.flops, kernel.bytes_read, kernel.bytes_written)
            rows.writerow(
                [device, kernel.kernel_class.value, kernel.variant, kernel.dtype, shape, *sizes, half_as_fast(kernel)]
            )
    return path


def calibrate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate")
    file = write(folder / "a40.csv", list(some_kernels()))
    result = calibrate(file, "--gpu", "a40", "--out", folder / "a40.npz", "--licence", "CC0", "--date", "2026-01-02")
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "108" in lines["gemm/bf16"]
    assert "kept as measured" in lines["sort/radix"]
    assert "fewer than 5 shapes" in lines["attention/bf16/flash_backward"]
    assert "8" in lines["elementwise/vectorized"]
    assert "2 models, 1 curves" in result.output.splitlines()[-1]
    return folder / "a40.npz"


def test_a_measured_shape_gets_its_measured_time(pack: Path) -> None:
    kernels = list(some_kernels())
    for kernel, estimate in zip(kernels, Estimator(load_device("a40"), [pack]).estimate(kernels), strict=True):
        assert estimate.origin is Origin.MEASURED
        assert estimate.ns == pytest.approx(half_as_fast(kernel) * 1e3, abs=1)


def test_a_shape_between_measurements_gets_a_close_time(pack: Path) -> None:
    kernels = [gemm_kernel(2048, 5120, 2048), gemm_kernel(512, 7168, 6144, layout="NT")]
    kernels.append(attention_kernel(2, 20, 3072, 64, causal=True, implementation="efficient"))
    kernels.append(Kernel(KernelClass.ELEMENTWISE, "fp32", 0.0, 4e7, 2e7, {}, "vectorized"))
    before = Estimator(load_device("a40")).estimate(kernels)
    for kernel, old, new in zip(kernels, before, Estimator(load_device("a40"), [pack]).estimate(kernels), strict=True):
        assert new.origin is Origin.MODEL
        assert new.ns == pytest.approx(half_as_fast(kernel) * 1e3, rel=0.25)
        assert abs(new.ns - half_as_fast(kernel) * 1e3) < abs(old.ns - half_as_fast(kernel) * 1e3)


def test_measurements_of_one_gpu_leave_other_gpus_alone(pack: Path) -> None:
    kernel = gemm_kernel(1024, 1024, 1024)
    assert Estimator(load_device("h100"), [pack]).estimate([kernel])[0].origin is Origin.MODEL
    assert Estimator(load_device("h100"), [pack]).estimate([kernel]) == Estimator(load_device("h100")).estimate(
        [kernel]
    )


def test_the_pack_names_its_sources(pack: Path) -> None:
    opened = Pack(pack)
    about = opened.models["gemm/bf16"]
    assert (about["source"], about["licence"], about["date"]) == ("a40.csv", "CC0", "2026-01-02")
    assert about["held_out"]["mean"] < 0.2


def test_the_same_measurements_give_the_same_pack(pack: Path, tmp_path: Path) -> None:
    again = tmp_path / "a40.npz"
    result = calibrate(
        pack.with_suffix(".csv"), "--gpu", "a40", "--out", again, "--licence", "CC0", "--date", "2026-01-02"
    )
    assert result.exit_code == 0, result.output
    assert again.read_bytes() == pack.read_bytes()


def test_measurements_of_another_gpu_are_noticed(tmp_path: Path) -> None:
    file = write(tmp_path / "x.csv", list(some_kernels())[-3:], device="NVIDIA T4")
    result = calibrate(file, "--gpu", "a40", "--out", tmp_path / "x.npz")
    assert result.exit_code == 0
    assert "'NVIDIA T4'" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column kind"),
        ("a,b\n1,2\n", "no column kind"),
        (",".join(COLUMNS) + "\n", "no measurements"),
        (",".join(COLUMNS) + "\nx,gem,TN,bf16,m=1 n=1 k=1,1,1,1,1\n", "line 2: unknown kind 'gem'"),
        (",".join(COLUMNS) + "\nx,gemm,TN,bf16,m=1 n=1,1,1,1,1\n", "shape has no k"),
        (",".join(COLUMNS) + "\nx,gemm,TN,bf16,m=1 n=1 k,1,1,1,1\n", "'k' in shape"),
        (",".join(COLUMNS) + "\nx,gemm,TN,bf16,m=1 n=1 k=1,1,1,1,0\n", "time_us is 0"),
        (",".join(COLUMNS) + "\nx,gemm,TN,bf16,m=1 n=1 k=1,1,much,1,1\n", "bytes_read is 'much'"),
    ],
)
def test_malformed_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(MeasurementsError) as caught:
        read_measurements(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    result = calibrate(path, "--gpu", "a40", "--out", tmp_path / "out.npz")
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "out.npz").exists()


def test_a_pack_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "x.csv", list(some_kernels())[-3:])
    for out, message in ((tmp_path / "x.txt", ".npz"), (tmp_path / "no" / "x.npz", "no folder")):
        result = calibrate(file, "--gpu", "a40", "--out", out)
        assert result.exit_code == 1
        assert message in result.output
    assert "unknown GPU" in calibrate(file, "--gpu", "a41", "--out", tmp_path / "x.npz").output
