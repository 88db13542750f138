"""Library calls: cuBLAS, cuBLASLt, cuDNN, cuFFT, cuSOLVER, cuSPARSE, cuRAND -> `Kernel`, from the call's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from maya.estimators.features.attention_kernels import cudnn_attention
from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import itemsize, short_dtype
from maya.estimators.kernel import Kernel, KernelClass

Arguments = Mapping[str, Any]


def library_call(launch: KernelLaunch) -> Kernel | None:
    """The kernel of a library call; None if the call is unknown."""
    arguments = launch.arguments
    call = launch.name
    if call.startswith("cublas") and {"m", "n", "k"} <= arguments.keys():
        return gemm_from_arguments(arguments)
    if call.startswith("cusparseLt") and {"m", "n", "k"} <= arguments.keys():
        return gemm_from_arguments(arguments)
    for prefix, handler in _HANDLERS:
        if call.startswith(prefix):
            return handler(call, arguments)
    return None


def gemm_from_arguments(arguments: Arguments) -> Kernel:
    """The GEMM d[m, n] = a[m, k] b[k, n] in row-major order: n and m of cuBLAS (column-major) are swapped.

    The variant is cuBLAS' pair of transpositions: TN is the forward of a linear layer, NN the gradient of its input, NT
    that of its weight.
    """
    n, m, k = int(arguments["m"]), int(arguments["n"]), int(arguments["k"])
    batch = int(arguments.get("batch", 1))
    a_type, b_type = str(arguments.get("a_type", "fp32")), str(arguments.get("b_type", "fp32"))
    d_type = str(arguments.get("d_type", arguments.get("c_type", a_type)))
    dtype = _gemm_dtype(a_type, str(arguments.get("compute", "")), str(arguments.get("math", "")))
    operations = 8.0 if a_type.startswith("complex") else 2.0
    output = float(m * n * batch * itemsize(d_type))
    accumulate = bool(arguments.get("accumulate"))
    read = float(k * n * itemsize(a_type) + m * k * itemsize(b_type)) * batch + (output if accumulate else 0.0)
    layout = (str(arguments.get("transa", "N"))[:1] + str(arguments.get("transb", "N"))[:1]).replace("C", "T")
    shape = {"m": float(m), "n": float(n), "k": float(k), "batch": float(batch)}
    return Kernel(KernelClass.GEMM, dtype, operations * m * n * k * batch, read, output, shape, layout)


def _gemm_dtype(a_type: str, compute: str, math_mode: str) -> str:
    if a_type.startswith("fp8"):
        return "fp8"
    if a_type == "fp32" and ("tf32" in compute or "tf32" in math_mode):
        return "tf32"
    return a_type


def _level_1_to_3(call: str, arguments: Arguments) -> Kernel:
    """cuBLAS beyond GEMM: vectors, matrix times vector, triangular solves, symmetric rank-k updates."""
    dtype = str(arguments.get("type", "fp32"))
    size = itemsize(dtype)
    m, n, k = (int(arguments.get(key, 1)) for key in ("m", "n", "k"))
    batch = int(arguments.get("batch", 1))
    shape = {"m": float(m), "n": float(n), "batch": float(batch)}
    if "trsm" in call:
        side = m if arguments.get("side") == "L" else n
        flops, read, written = float(side * m * n), size * (side * side / 2 + m * n), float(size * m * n)
        return _algebra(dtype, flops * batch, read * batch, written * batch, shape | {"steps": side / 32}, "trsm")
    if "getr" in call or "geqrf" in call or "gels" in call or "matinv" in call:
        return _factorisation(call, arguments)
    if "syrk" in call or "herk" in call or "syr2k" in call:
        flops, read, written = float(n * n * k), size * n * k, size * n * n / 2
    elif "symm" in call or "trmm" in call:
        flops, read, written = 2.0 * m * m * n, size * (m * m / 2 + m * n), size * m * n
    elif "geam" in call or "dgmm" in call:
        flops, read, written = float(m * n), 2.0 * size * m * n, size * m * n
    elif "m" in arguments:  # gemv, ger, trsv, ...
        flops, read, written = 2.0 * m * n, size * m * n, size * m
    else:  # dot, axpy, scal, nrm2, ...
        flops, read, written = 2.0 * n, 2.0 * size * n, size * n
    return _algebra(dtype, flops * batch, read * batch, written * batch, shape | {"steps": 1.0}, call)


def _factorisation(call: str, arguments: Arguments) -> Kernel:
    """cuSOLVER, by standard operation counts; `steps` is the chain of panels, each waiting for the one before."""
    dtype = str(arguments.get("type", "fp32"))
    m, n = float(arguments.get("m", 1)), float(arguments.get("n", 1))
    k, batch = float(arguments.get("k", n)), float(arguments.get("batch", 1))
    small = min(m, n)
    name = call.lower()
    vectors = arguments.get("job", "N") != "N"
    panels = small / 32
    if "potrf" in name:
        flops, steps = n**3 / 3, panels
    elif "potrs" in name or "getrs" in name:
        columns = float(arguments.get("nrhs", 1))
        flops, steps = 2 * n * n * columns, 2 * panels
    elif "potri" in name or "getri" in name:
        flops, steps = 4 * n**3 / 3, 2 * panels
    elif "getrf" in name:
        flops, steps = 2 * m * n * small - 2 * small**3 / 3, small  # each column searches its pivot
    elif "geqrf" in name:
        flops, steps = 2 * n * n * (m - n / 3), small
    elif "orgqr" in name or "ungqr" in name or "ormqr" in name or "unmqr" in name:
        flops, steps = 4 * m * n * k, panels
    elif "gesvd" in name:
        flops, steps = (22 if vectors else 8) * m * n * small, 10 * small
    elif "syev" in name or "heev" in name:
        flops, steps = (9 if vectors else 4) * n**3 / 3 * 4, 10 * small
    elif "geev" in name:
        flops, steps = (25 if vectors else 10) * n**3, 20 * small
    else:
        flops, steps = 2 * m * n * small, small
    moved = m * n * itemsize(dtype)
    shape = {"m": m, "n": n, "batch": batch, "steps": max(steps, 1.0)}
    return _algebra(dtype, max(flops, 1.0) * batch, moved * batch, moved * batch, shape, _routine(call))


def _routine(call: str) -> str:
    """cusolverDnXpotrf -> potrf; cusolverDnXsyevBatched -> syev."""
    text = call.removeprefix("cusolverDn").removeprefix("cublas").removesuffix("Batched")
    return text[1:] if text[:1] in "XSDCZ" else text


def _algebra(dtype: str, flops: float, read: float, written: float, shape: dict[str, float], variant: str) -> Kernel:
    return Kernel(KernelClass.LINEAR_ALGEBRA, dtype, flops, float(read), float(written), shape, variant)


def _fourier(call: str, arguments: Arguments) -> Kernel:
    """FFT: 5 N log2 N FLOPs for complex transforms, half of that where one side is real; each side is moved once per
    pass."""
    dims = [int(size) for size in arguments.get("dims", [1])]
    batch = float(arguments.get("batch", 1))
    input_type, output_type = str(arguments.get("input_type", "")), str(arguments.get("output_type", ""))
    points = float(math.prod(dims))
    real = not (input_type.startswith("complex") and output_type.startswith("complex"))
    half = points / dims[-1] * (dims[-1] // 2 + 1) if dims else points
    read = batch * itemsize(input_type) * (half if real and input_type.startswith("complex") else points)
    written = batch * itemsize(output_type) * (half if real and output_type.startswith("complex") else points)
    flops = batch * points * 5.0 * math.log2(max(points, 2.0)) * (0.5 if real else 1.0)
    shape = {"points": points, "batch": batch, "dimensions": float(len(dims))}
    return Kernel(
        KernelClass.FFT,
        str(arguments.get("compute", "complex64")),
        flops,
        read,
        written,
        shape,
        "real" if real else "complex",
    )


def _recurrent(call: str, arguments: Arguments) -> Kernel:
    """cuDNN's RNNs: one GEMM with the input for all time steps, then one with the hidden state per time step."""
    gates = {"lstm": 4.0, "gru": 3.0}.get(str(arguments.get("cell", "")), 1.0)
    layers, directions = float(arguments.get("layers", 1)), float(arguments.get("directions", 1))
    batch, steps = float(arguments.get("batch", 1)), float(arguments.get("sequence", 1))
    tokens = float(arguments.get("tokens", batch * steps))
    inputs, hidden = float(arguments.get("input_size", 1)), float(arguments.get("hidden_size", 1))
    out = float(arguments.get("projection_size", 0)) or hidden
    later = out * directions
    weights = gates * hidden * directions * (inputs + out + (layers - 1) * (later + out))
    dtype = str(arguments.get("type", "fp32"))
    computed = "tf32" if dtype == "fp32" and "tf32" in str(arguments.get("math", "")) else dtype
    size = itemsize(dtype)
    activations = tokens * (inputs + layers * later * (1 + gates)) * size
    if "BackwardWeights" in call:
        variant, read, written = "backward_weights", activations, weights * size
    elif "BackwardData" in call:
        variant, read, written = "backward_data", activations + weights * size, tokens * inputs * size
    else:
        variant, read, written = "forward", tokens * inputs * size + weights * size, activations
    shape = {"batch": batch, "steps": steps, "hidden": hidden, "layers": layers * directions, "gates": gates}
    return Kernel(KernelClass.RNN, computed, 2.0 * weights * tokens, read, written, shape, variant)


def _cudnn_graph(call: str, arguments: Arguments) -> Kernel | None:
    """A cuDNN graph, which runs as one kernel: its main operation, plus the bytes of the other operations' tensors."""
    operations = [item for item in arguments.get("operations", []) if isinstance(item, dict)]
    for operation in operations:
        name = str(operation.get("op", ""))
        if name.startswith("attention"):
            return cudnn_attention(operation)
        if name.startswith("convolution"):
            return convolution(operation, str(arguments.get("math", "")))
        if name == "matmul":
            return _graph_gemm(operation)
    if not operations:
        return None
    moved = [_tensor_bytes(value) for operation in operations for value in operation.values()]
    elements = max(moved, default=0.0) / 4
    return Kernel(
        KernelClass.ELEMENTWISE,
        "fp32",
        elements,
        sum(moved[:-1]),
        max(moved, default=0.0),
        {"elements": elements},
        "strided",
    )


def _graph_gemm(operation: Arguments) -> Kernel | None:
    try:
        a, b = operation["a"], operation["b"]
        *batches, m, k = a["dims"]
        n = b["dims"][-1]
    except (KeyError, TypeError, ValueError):
        return None
    types = {"a_type": b.get("type"), "b_type": a.get("type"), "c_type": operation.get("c", a).get("type")}
    return gemm_from_arguments({"m": n, "n": m, "k": k, "batch": math.prod(batches), **types})


def _tensor_bytes(value: Any) -> float:
    if not isinstance(value, dict) or "dims" not in value or value.get("virtual"):
        return 0.0
    return float(math.prod(value["dims"]) * itemsize(str(value.get("type", "fp32"))))


_DIRECTIONS = {
    "forward": "forward",
    "backward_data": "dgrad",
    "backward_filter": "wgrad",
    "dgrad": "dgrad",
    "wgrad": "wgrad",
}


def convolution(operation: Arguments, math_mode: str) -> Kernel | None:
    """A convolution in any direction: x [N, C, ...], w [K, C / groups, ...], y [N, K, ...]."""
    names = {"x": ("x", "dx", "input"), "w": ("w", "dw", "filter"), "y": ("y", "dy", "output")}
    tensors = {}
    for name, spellings in names.items():
        tensors[name] = next((operation[s] for s in spellings if isinstance(operation.get(s), dict)), None)
    x, w, y = tensors["x"], tensors["w"], tensors["y"]
    if not (x and w and y):
        return None
    direction = str(operation.get("op", "")).removeprefix("convolution_")
    variant = _DIRECTIONS.get(direction, direction or "forward")
    return convolution_kernel(
        str(x["type"]),
        x["dims"],
        w["dims"],
        y["dims"],
        stride=[int(step) for step in operation.get("stride", [1])],
        groups=int(operation.get("groups", 1)),
        variant=variant,
        tf32="tf32" in math_mode or "tf32" in str(operation.get("math", "")),
        channels_last=_channels_last(x),
    )


def convolution_kernel(
    dtype: str,
    x: list[int],
    w: list[int],
    y: list[int],
    *,
    stride: list[int],
    groups: int,
    variant: str,
    tf32: bool = False,
    channels_last: bool = False,
) -> Kernel:
    """The kernel of a convolution, from the sizes of its tensors."""
    size = itemsize(dtype)
    window = math.prod(w[2:])
    flops = 2.0 * math.prod(y) * w[1] * window
    bytes_of = {"x": float(math.prod(x) * size), "w": float(math.prod(w) * size), "y": float(math.prod(y) * size)}
    result = {"dgrad": "x", "wgrad": "w"}.get(variant, "y")
    shape = {
        "batch": float(x[0]),
        "channels": float(x[1]),
        "filters": float(w[0]),
        "window": float(window),
        "positions": float(math.prod(y[2:])),
        "stride": float(max(stride, default=1)),
        "groups": float(groups),
        "channels_last": float(channels_last),
    }
    read = sum(value for name, value in bytes_of.items() if name != result)
    computed = "tf32" if dtype == "fp32" and tf32 else dtype
    return Kernel(KernelClass.CONVOLUTION, computed, flops, read, bytes_of[result], shape, variant)


def _channels_last(tensor: Arguments) -> bool:
    strides = tensor.get("strides", [])
    return len(strides) > 2 and strides[1] == 1 and tensor["dims"][1] > 1


def _cudnn_convolution(call: str, arguments: Arguments) -> Kernel | None:
    direction = "wgrad" if "BackwardFilter" in call else "dgrad" if "BackwardData" in call else "forward"
    return convolution({"op": f"convolution_{direction}", **arguments}, str(arguments.get("math", "")))


def _batch_norm(call: str, arguments: Arguments) -> Kernel | None:
    x = arguments.get("x")
    if not isinstance(x, dict):
        return None
    elements = float(math.prod(x["dims"]))
    moved = elements * itemsize(str(x["type"]))
    backward = "Backward" in call
    inference = "Inference" in call
    # Statistics first, then the result: the input is read twice (from L2 if it fits), but its bytes count once.
    channels = float(x["dims"][1]) if len(x["dims"]) > 1 else 1.0
    shape = {"rows": channels, "columns": elements / channels, "passes": 1.0 if inference else 2.0}
    variant = "batch_norm_backward" if backward else "batch_norm_inference" if inference else "batch_norm_forward"
    return Kernel(
        KernelClass.NORM, str(x["type"]), 8 * elements, moved * (2.0 if backward else 1.0), moved, shape, variant
    )


def _cudnn_other(call: str, arguments: Arguments) -> Kernel:
    """Pooling, softmax, CTC, tensor transforms: each tensor in the arguments once."""
    if "bytes" in arguments:
        size = float(arguments["bytes"])
        return Kernel(KernelClass.RANDOM, "int32", size, 0.0, size, {"elements": size / 4}, call)
    moved = [_tensor_bytes(value) for value in arguments.values() if isinstance(value, dict)]
    largest = max(moved, default=0.0)
    dtype = next((str(v["type"]) for v in arguments.values() if isinstance(v, dict) and "type" in v), "fp32")
    elements = largest / itemsize(dtype)
    return Kernel(KernelClass.ELEMENTWISE, dtype, elements, sum(moved), largest, {"elements": elements}, "strided")


def _sparse(call: str, arguments: Arguments) -> Kernel:
    """Sparse times dense reads a row of the dense matrix per nonzero; conversions read the indices."""
    dtype = str(arguments.get("type", "fp32"))
    size = itemsize(dtype)
    nonzeros = float(arguments.get("nnz", arguments.get("nnz_a", 0)) or 0) * float(arguments.get("block", 1)) ** 2
    rows, columns = float(arguments.get("rows", 0)), float(arguments.get("n", 1))
    index = float(itemsize(str(arguments.get("index_type", "int32"))))
    batch = float(arguments.get("batch", 1))
    shape = {"rows": rows, "columns": columns, "nonzeros": nonzeros, "steps": 1.0}
    if "n" not in arguments and "SpGEMM" not in call:
        return _algebra("int32", nonzeros, nonzeros * index, rows * index + nonzeros * index, shape, "sparse_indices")
    read = batch * nonzeros * (size + index + size * columns)
    flops = 2.0 * batch * nonzeros * columns
    return _algebra(dtype, flops, read, batch * rows * columns * size, shape, "sparse_product")


def _random_numbers(call: str, arguments: Arguments) -> Kernel:
    count = float(arguments.get("n", 0))
    dtype = short_dtype(str(arguments.get("type", "fp32")))
    return Kernel(KernelClass.RANDOM, dtype, 20 * count, 0.0, count * itemsize(dtype), {"elements": count}, call)


def _bytes_moved(call: str, arguments: Arguments) -> Kernel:
    size = float(arguments.get("bytes", 0))
    return Kernel(KernelClass.TRANSFER, "uint8", 0.0, size, size, {"bytes": size}, call)


_HANDLERS: tuple[tuple[str, Callable[[str, Arguments], Kernel | None]], ...] = (
    ("cublas", _level_1_to_3),
    ("cudnnBackendExecute", _cudnn_graph),
    ("cudnnRNN", _recurrent),
    ("cudnnBatchNormalization", _batch_norm),
    ("cudnnNormalization", _batch_norm),
    ("cudnnConvolution", _cudnn_convolution),
    ("cudnn", _cudnn_other),
    ("cufft", _fourier),
    ("cusolver", _factorisation),
    ("cusparse", _sparse),
    ("curand", _random_numbers),
    ("cufile", _bytes_moved),
    ("nvshmem", _bytes_moved),
)
