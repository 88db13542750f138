"""Profiles of real runs, as torch.profiler writes them (Kineto's JSON) -> launches with measured durations.

In: a trace file with record_shapes=True. Out: `Measured` launches: kernels, copies and memsets with the op that
launched them, its shapes, dtypes and strides. Collectives (kernels named nccl...) are left out: the network model
covers them.
"""

from __future__ import annotations

import ast
import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.features.tensors import Tensor, dense_strides, short_dtype

# Kineto's name of a dtype -> torch's.
_TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
_COPIES = {"HtoD": "HtoD", "DtoH": "DtoH", "DtoD": "DtoD", "PtoP": "PtoP"}


_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError, zlib.error
)  # fmt: skip


class ProfileError(ValueError):
    """A file is not a profile of torch.profiler."""


@dataclass(frozen=True)
class Measured:
    """A launch and its measured duration."""

    launch: KernelLaunch
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The launches of one device."""

    device_name: str
    launches: list[Measured]
    communication_seconds: float  # total of the collectives that were left out


def read_profile(path: str | Path) -> Profile:
    """The launches in a profile, in order of their start."""
    path = Path(path)
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        return _profile(content, content["traceEvents"] if isinstance(content, dict) else content)
    except _DAMAGE as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise _not_a_profile(path, reason) from error


def _not_a_profile(path: Path, reason: str) -> ProfileError:
    return ProfileError(
        f"{path}: not a trace of torch.profiler ({reason}); write one with profiler.export_chrome_trace(FILE)"
    )


def _profile(content: Any, events: list[dict[str, Any]]) -> Profile:
    devices = content.get("deviceProperties") or [{}] if isinstance(content, dict) else [{}]
    ops = {
        e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})
    }
    launches: list[Measured] = []
    communication = 0.0
    before: dict[tuple[Any, str], int] = {}
    for event in sorted((e for e in events if e.get("cat") in _READ), key=lambda e: float(e["ts"])):
        seconds = float(event["dur"]) * 1e-6
        if "nccl" in event["name"].lower() or "all_reduce" in event["name"]:
            communication += seconds
            continue
        launches.append(Measured(_launch(event, ops, before), seconds))
    return Profile(str(devices[0].get("name", "")), launches, communication)


_READ = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def _launch(event: dict[str, Any], ops: dict[Any, dict[str, Any]], before: dict[tuple[Any, str], int]) -> KernelLaunch:
    arguments = event.get("args", {})
    identity = arguments.get("External id")
    op = ops.get(identity)
    common: dict[str, Any] = {}
    if op is not None:
        common = {"op": op["name"], "inputs": tuple(_inputs(op.get("args", {})))}
    if event["cat"] == "gpu_memset":
        return KernelLaunch("memset", "memset", bytes=int(arguments.get("bytes", 0)), **common)
    if event["cat"] == "gpu_memcpy":
        direction = next((way for way in _COPIES if way in event["name"]), "DtoD")
        options = {"pageable": "Pageable" in event["name"]}
        return KernelLaunch("copy", direction, arguments=options, bytes=int(arguments.get("bytes", 0)), **common)
    grid, block = (tuple(int(size) for size in arguments.get(key, (1, 1, 1))) for key in ("grid", "block"))
    done = before.get((identity, event["name"]), 0)
    before[identity, event["name"]] = done + (grid[1] if "CatArray" in event["name"] else grid[0] * grid[1] * grid[2])
    return KernelLaunch(
        "kernel",
        event["name"],
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        before=done,
        **common,
    )


def _inputs(arguments: dict[str, Any]) -> list[Any]:
    """The op's inputs: tensors from their sizes and types, scalars from their text."""
    sizes, types = arguments.get("Input Dims", []), arguments.get("Input type", [])
    strides = arguments.get("Input Strides", [])
    concrete = arguments.get("Concrete Inputs", [])
    found: list[Any] = []
    for at, size in enumerate(sizes):
        kind = types[at] if at < len(types) else ""
        stride = strides[at] if at < len(strides) else []
        text = concrete[at] if at < len(concrete) else ""
        found.append(_input(size, kind, stride, text))
    return found


def _input(size: Any, kind: Any, stride: Any, text: Any) -> Any:
    if isinstance(size, list) and size and isinstance(size[0], list):
        kinds = kind if isinstance(kind, list) else [_type_in_list(str(kind))] * len(size)
        steps = stride if stride and isinstance(stride[0], list) else [[]] * len(size)
        return [_tensor(dims, name, step) for dims, name, step in zip(size, kinds, steps, strict=False)]
    if isinstance(kind, str) and kind in _TYPES:
        return _tensor(size, kind, stride)
    if isinstance(text, str) and text:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return None


def _type_in_list(kind: str) -> str:
    """The dtype of a TensorList, which Kineto does not record; concatenated tensors are often bf16."""
    return kind if kind in _TYPES else "c10::BFloat16"


def _tensor(dims: list[int], kind: str, stride: list[int]) -> Tensor:
    shape = tuple(int(size) for size in dims)
    strides = tuple(int(step) for step in stride) if len(stride) == len(shape) else dense_strides(shape)
    return Tensor(shape, short_dtype(_TYPES.get(kind, kind)), strides)
