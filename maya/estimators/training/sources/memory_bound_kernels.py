"""Measurements of memory-bound ops, as the kernels that torch launches for them.

    liger           eager torch in Liger-Kernel's benchmarks: H100, A100 (norms, activations, cross-entropy, embedding)
    cudnn_norms     torch's norms in cuDNN frontend's benchmark: H200, GB200
    neusight        fp32 elementwise, softmax, layer norm: A100 40 GB, V100
    vidur           residual additions of inference: A100, H100, A40
    llmcompass      fp16 softmax, layer norm, gelu: A100

In: the folder of a source's files. Out: `Observation`s of one device of the catalogue. Two sorts of rows are left out:
those timed from the host with a large share of host time, and those repeated on the same memory that mostly stays in
the L2 cache.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from maya.devices import Device
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.models.curves import Observation
from maya.estimators.models.row_traffic import HAS_MEAN, IN_PASSES, softmax_variant

# A row that was timed from the host counts only if it took this many times as long as the shortest of its class.
_ABOVE_HOST = 5.0
_ABOVE_CACHE = 4.0  # times the L2 cache: the smallest size of rows that were repeated on the same memory

SOURCES = {
    "liger": ("linkedin/Liger-Kernel @ead96b61", "BSD-2-Clause"),
    "cudnn_norms": ("NVIDIA/cudnn-frontend @3929da2", "MIT"),
    "neusight": ("sitar-lab/NeuSight @6945927", "MIT"),
    "vidur": ("microsoft/vidur @7d47513", "MIT"),
    "llmcompass": ("PrincetonUniversity/LLMCompass @2e015fd", "BSD-3-Clause"),
}
DATE = "2026-11"


def observations(data: Path, device: Device) -> list[Observation]:
    """All observations of a device in the folder of measurements."""
    found: list[Observation] = []
    for name, reader in _READERS.items():
        folder = data / name.replace("cudnn_norms", "cudnn_frontend")
        if folder.is_dir():
            found += reader(folder, device)
    return found


def elementwise(elements: float, sizes_read: list[int], size_written: int, variant: str = "vectorized") -> Kernel:
    """An elementwise kernel; `sizes_read` and `size_written` are bytes per element."""
    dtype = "fp32" if size_written == 4 else "bf16"
    read, written = elements * sum(sizes_read), elements * size_written
    return Kernel(KernelClass.ELEMENTWISE, dtype, elements, read, written, {"elements": elements}, variant)


def copy(elements: float, size_read: int, size_written: int, variant: str) -> Kernel:
    dtype = "fp32" if size_written == 4 else "bf16"
    return Kernel(
        KernelClass.COPY, dtype, 0.0, elements * size_read, elements * size_written, {"elements": elements}, variant
    )


def over_rows(
    kernel_class: KernelClass, variant: str, rows: float, columns: float, size: int, reads: float, writes: float
) -> Kernel:
    """A kernel over rows that reads and writes this many tensors."""
    moved = rows * columns * size
    dtype = "fp32" if size == 4 else "bf16"
    return Kernel(
        kernel_class,
        dtype,
        8 * rows * columns,
        reads * moved,
        writes * moved,
        {"rows": rows, "columns": columns},
        variant,
    )


def norm_forward(rows: float, columns: float, size: int, *, has_mean: bool) -> list[Kernel]:
    """A norm; `has_mean`: layer norm, not RMS norm."""
    kernel = over_rows(KernelClass.NORM, "layer_norm_forward", rows, columns, size, 1, 1)
    return [replace(kernel, shape={**kernel.shape, HAS_MEAN: float(has_mean)})]


def norm_backward(rows: float, columns: float, size: int) -> list[Kernel]:
    return [
        over_rows(KernelClass.NORM, "layer_norm_backward", rows, columns, size, 2, 1),
        over_rows(KernelClass.NORM, "layer_norm_backward_parameters", rows, columns, size, 2, 0),
    ]


def eager_rms_norm(rows: float, columns: float, size: int) -> list[Kernel]:
    """As in Hugging Face's models: cast, square, mean, + epsilon, rsqrt, scale, cast, weight.

    Both casts are unrolled kernels in the versions of torch that were measured; later ones use vectors for one.
    """
    n = rows * columns
    kernels = [copy(n, size, 4, "unrolled")] if size != 4 else []
    kernels.append(elementwise(n, [4], 4))
    kernels.append(over_rows(KernelClass.REDUCTION, "inner", rows, columns, 4, 1, 1 / columns))
    kernels += [elementwise(rows, [4], 4)] * 2
    kernels.append(elementwise(n, [4], 4, "strided"))
    kernels += [copy(n, 4, size, "unrolled")] if size != 4 else []
    kernels.append(elementwise(n, [size], size, "strided"))
    return kernels


_LIGER_GPUS = {"h100": "NVIDIA H100 80GB HBM3", "a100-80": "NVIDIA A100-SXM4-80GB"}
_SIZES = {"torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}


def liger(folder: Path, device: Device) -> list[Observation]:
    gpu = _LIGER_GPUS.get(device.key)
    path = folder / "all_benchmark_data.csv.gz"
    if gpu is None or not path.is_file():
        return []
    found = []
    for row in _rows(path):
        if row["gpu_name"] != gpu or row["metric_name"] != "speed":
            continue
        options = json.loads(row["extra_benchmark_config_str"])
        kernels = _liger_kernels(row, options, float(row["x_value"]))
        if kernels:
            # The rows of one benchmark differ in one size, which defines the group for holding out.
            group = f"{row['x_name']}={row['x_value']}"
            found.append(Observation(tuple(kernels), float(row["y_value_50"]) * 1e-3, group, "liger", device))
    return found


def _liger_kernels(row: dict[str, str], options: dict[str, float | str], x: float) -> list[Kernel] | None:
    name, provider, mode = row["kernel_name"], row["kernel_provider"], row["kernel_operation_mode"]
    size = _SIZES.get(str(options.get("dtype", "torch.bfloat16")), 2)
    rows = float(options.get("M", 0))
    if provider == "huggingface":
        if name == "layer_norm" and mode == "forward":
            return norm_forward(rows, x, size, has_mean=True)
        if name == "layer_norm" and mode == "backward":
            # Repetitions do not reset the gradients of scale and bias, so these are accumulated.
            return [*norm_backward(rows, x, size), *[elementwise(x, [size, size], size)] * 2]
        if name == "rms_norm" and mode == "forward":
            return eager_rms_norm(rows, x, size)
        if name == "fused_add_rms_norm" and mode == "forward":
            return [elementwise(rows * x, [size, size], size), *eager_rms_norm(rows, x, size)]
        if name == "embedding" and mode == "forward":
            tokens, width = float(options["B"]) * float(options["T"]), float(options["D"])
            moved = tokens * width * size
            shape = {"rows": tokens, "columns": width}
            return [Kernel(KernelClass.EMBEDDING, "fp32", 0.0, moved, moved, shape, "index_select")]
        if name == "cross_entropy" and mode == "forward":
            tokens = float(options["B"]) * float(options["T"])
            # In this version of torch, one block of 32 threads gathers the likelihoods.
            turns = {"rows": tokens, "turns": tokens / 32}
            picked = Kernel(KernelClass.CROSS_ENTROPY, "fp32", tokens, 40 * tokens, 4.0, turns, "forward")
            variant = softmax_variant("log_softmax_forward", 4 * x)
            return [over_rows(KernelClass.SOFTMAX, variant, tokens, x, 4, 1, 1), picked]
    if provider == "torch" and mode == "forward":
        if name == "relu_squared":
            return [elementwise(rows * x, [size], size)] * 2
        if name == "megatron_rms_norm":
            return norm_forward(float(options["S"]) * float(options["B"]), x, 2, has_mean=False)
        if name == "megatron_swiglu":
            n = float(options["S"]) * float(options["B"]) * x
            return [elementwise(n, [2], 2, "strided"), elementwise(n, [2, 2], 2, "strided")]
    return None


_CUDNN_GPUS = {"h200": "h200", "gb200": "gb200"}


def cudnn_norms(folder: Path, device: Device) -> list[Observation]:
    if device.key not in _CUDNN_GPUS:
        return []
    found = []
    for path in sorted(folder.glob(f"norms__{_CUDNN_GPUS[device.key]}__*.csv")):
        for row in _rows(path):
            forward, backward = float(row["fwd_time_ms"]) * 1e-3, float(row["bwd_time_ms"]) * 1e-3
            if row["backend"] != "pytorch" or row["success"] != "True" or not forward < 1.0:
                continue
            rows, columns = float(row["N"]), float(row["C"])
            for kernels, seconds in (
                (norm_forward(rows, columns, 2, has_mean=row["norm_type"] == "layer_norm"), forward),
                (norm_backward(rows, columns, 2), backward),
            ):
                found.append(Observation(tuple(kernels), seconds, f"columns={row['C']}", "cudnn_norms", device))
    return found


_NEUSIGHT_GPUS = {"a100-40": "NVIDIA A100-PCIE-40GB", "v100": "Tesla V100-PCIE-32GB"}
_TWO_OPERANDS = ("add", "mul", "div")
_COLUMNS_OF_A_WARP = 1024
_ONE_OPERAND = ("relu", "gelu", "tanh")  # pow is limited by its arithmetic


def neusight(folder: Path, device: Device) -> list[Observation]:
    gpu = _NEUSIGHT_GPUS.get(device.key)
    if gpu is None:
        return []
    found = []
    for name in (*_TWO_OPERANDS, *_ONE_OPERAND, "softmax", "ln"):
        path = folder / "train_collect" / f"{name}__{gpu.replace(' ', '_')}.csv.gz"
        if not path.is_file():
            continue
        rows = list(_rows(path))
        shortest = min(float(row["Latency"]) for row in rows)
        for row in rows:
            if float(row["Latency"]) < _ABOVE_HOST * shortest:
                continue
            kernels = _neusight_kernel(name, float(row["B"]), float(row["H"]))
            found.append(
                Observation((kernels,), float(row["Latency"]) * 1e-3, f"columns={row['H']}", f"neusight {name}", device)
            )
    return found


def _neusight_kernel(name: str, rows: float, columns: float) -> Kernel:
    if name == "softmax":
        # torch 2.1: only rows that a warp has are kept in its registers.
        variant = "softmax_forward" + (IN_PASSES if columns > _COLUMNS_OF_A_WARP else "")
        return over_rows(KernelClass.SOFTMAX, variant, rows, columns, 4, 1, 1)
    if name == "ln":
        return norm_forward(rows, columns, 4, has_mean=True)[0]
    return elementwise(rows * columns, [4, 4] if name in _TWO_OPERANDS else [4], 4)


_VIDUR_GPUS = {"a100-80": "a100", "h100": "h100", "a40": "a40"}


def vidur(folder: Path, device: Device) -> list[Observation]:
    if device.key not in _VIDUR_GPUS:
        return []
    found = []
    for path in sorted((folder / "compute").glob(f"{_VIDUR_GPUS[device.key]}__*.csv.gz")):
        if "phi-2" in path.name:  # adds attention and MLP at once: the time is not that of one addition
            continue
        for row in _rows(path):
            text = row.get("time_stats.add.median", "")
            elements = float(row["num_tokens"]) * float(row["n_embd"])
            if text and float(text) > 0 and 6 * elements > _ABOVE_CACHE * device.l2_bytes:
                kernel = elementwise(elements, [2, 2], 2)
                found.append(Observation((kernel,), float(text) * 1e-3, f"hidden={row['n_embd']}", "vidur", device))
    return found


_LLMCOMPASS: dict[str, Callable[[float, float], Kernel]] = {
    "softmax": lambda rows, columns: over_rows(
        KernelClass.SOFTMAX, f"softmax_forward{IN_PASSES}", rows, columns, 2, 1, 1
    ),
    "layernorm": lambda rows, columns: norm_forward(rows, columns, 2, has_mean=True)[0],
    "gelu": lambda rows, columns: elementwise(rows * columns, [2], 2),
}


def llmcompass(folder: Path, device: Device) -> list[Observation]:
    """Throughputs in billions of elements a second."""
    if device.key != "a100-80":
        return []
    found = []
    for name, make_kernel in _LLMCOMPASS.items():
        path = folder / f"{name}_A100.csv"
        if not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            *sizes, throughput = (float(value) for value in line.split(","))
            rows, columns = sizes if len(sizes) == 2 else (1.0, sizes[0])
            seconds = rows * columns / (throughput * 1e9)
            if seconds > 100e-6:  # timed from the host
                group = f"columns={columns:.0f}" if name != "gelu" else f"elements={columns:.0f}"
                found.append(Observation((make_kernel(rows, columns),), seconds, group, "llmcompass", device))
    return found


_READERS: dict[str, Callable[[Path, Device], list[Observation]]] = {
    "liger": liger,
    "cudnn_norms": cudnn_norms,
    "neusight": neusight,
    "vidur": vidur,
    "llmcompass": llmcompass,
}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return csv.DictReader(io.StringIO(text, newline=""))
