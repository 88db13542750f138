"""Names and arguments as torch.profiler writes them: kernels, copies, collectives, types of inputs.

In: signatures of a trace. Out: the names that Kineto would use. Kernels have their own names. The kernels of a library
call are unknown, so it is named after the call and its sizes; such a name begins with `maya::`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from maya.estimators.features.from_trace import TracedKernel
from maya.replay.rank_class import CollectiveCall

_NCCL_TYPES = {
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "fp16": "f16",
    "fp32": "f32",
    "fp64": "f64",
    "bf16": "bf16",
    "fp8_e4m3": "f8e4m3",
    "fp8_e5m2": "f8e5m2",
}
_TORCH_TYPES = {
    "int8": "Char",
    "uint8": "Byte",
    "int32": "Int",
    "uint32": "UInt32",
    "int64": "Long",
    "uint64": "UInt64",
    "fp16": "Half",
    "fp32": "Float",
    "fp64": "Double",
    "bf16": "BFloat16",
    "fp8_e4m3": "Float8_e4m3fn",
    "fp8_e5m2": "Float8_e5m2",
}
_KERNELS = {
    "ncclAllReduce": "AllReduce",
    "ncclReduce": "Reduce",
    "ncclReduceScatter": "ReduceScatter",
    "ncclAllGather": "AllGather",
    "ncclBroadcast": "Broadcast",
    "ncclBcast": "Broadcast",
}
_REDUCING = ("ncclAllReduce", "ncclReduce", "ncclReduceScatter")
_COLLECTIVES = {
    "ncclAllReduce": "allreduce",
    "ncclReduce": "reduce",
    "ncclReduceScatter": "_reduce_scatter_base",
    "ncclAllGather": "_allgather_base",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclAlltoAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
_COPIES = {
    "HtoD": "Memcpy HtoD (Pinned -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pinned)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
    "HtoH": "Memcpy HtoH (Pinned -> Pinned)",
    "PtoP": "Memcpy PtoP (Device -> Device)",
}
_INPUT_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
_MOST_RANKS_LISTED = 16


def library_name(item: TracedKernel) -> str:
    """The name of a library call: maya::cublasGemmEx<bf16, TN>(m=4096, n=4096, k=4096)."""
    kinds = ", ".join(filter(None, [item.kernel.dtype, item.kernel.variant]))
    sizes = ", ".join(f"{name}={value:.0f}" for name, value in item.kernel.shape.items())
    # HTA does not count a kernel as computing if its name contains Sync, Memcpy or Memset.
    return f"maya::{item.launch.name}<{kinds}>({sizes})"


def copy_name(signature: dict[str, Any]) -> str:
    return _COPIES.get(str(signature.get("copy", "")), "Memcpy DtoD (Device -> Device)")


def collective_kernel(call: CollectiveCall, operation: str) -> str:
    """The name of NCCL's generic kernel for the function, which does not depend on the algorithm."""
    kind = _KERNELS.get(call.call)
    if kind is None:
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    if call.call in _REDUCING:
        kind += f"_{(operation or 'sum').capitalize()}_{_NCCL_TYPES.get(call.dtype, call.dtype)}"
    return f"ncclDevKernel_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collective_arguments(
    call: CollectiveCall, rank: int, members: Sequence[int], group: str, description: str, sequence: int
) -> dict[str, Any]:
    """The arguments of a collective's kernel."""
    ranks = len(members)
    gathers = call.call in ("ncclAllGather", "ncclGather")
    scatters = call.call in ("ncclReduceScatter", "ncclScatter")
    everywhere = call.count * (ranks if call.call == "ncclAlltoAll" else 1)
    peer = members[call.peer] if 0 <= call.peer < ranks else rank
    shown = list(members) if ranks <= _MOST_RANKS_LISTED else [*members[: _MOST_RANKS_LISTED - 1], "..."]
    found: dict[str, Any] = {
        "Collective name": _COLLECTIVES.get(call.call, call.call),
        "In msg nelems": call.count * ranks if scatters else everywhere,
        "Out msg nelems": call.count * ranks if gathers else everywhere,
        "Group size": ranks,
        "dtype": _TORCH_TYPES.get(call.dtype, call.dtype),
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": description,
        "Process Group Ranks": json.dumps(shown).replace('"', ""),
        "Seq": sequence,
    }
    if call.call in ("ncclSend", "ncclRecv"):
        sends = call.call == "ncclSend"
        found |= {"Src Rank": rank if sends else peer, "Dst Rank": peer if sends else rank}
    return found


def input_arguments(inputs: Sequence[Any]) -> dict[str, Any]:
    """The arguments of an op: sizes, types, strides and values of its inputs."""
    dims, types, strides, concrete = [], [], [], []
    for value in inputs:
        if isinstance(value, dict) and "shape" in value:
            dims.append(value["shape"])
            types.append(_INPUT_TYPES.get(str(value.get("dtype")), str(value.get("dtype"))))
            strides.append(value.get("strides", []))
            concrete.append("")
        elif isinstance(value, list) and value and all(isinstance(one, dict) and "shape" in one for one in value):
            dims.append([one["shape"] for one in value])
            types.append("TensorList")
            strides.append([one.get("strides", []) for one in value])
            concrete.append("")
        else:
            dims.append([])
            types.append("" if value is None else "ScalarList" if isinstance(value, list) else "Scalar")
            strides.append([])
            concrete.append("" if value is None else str(value))
    return {"Concrete Inputs": concrete, "Input type": types, "Input Strides": strides, "Input Dims": dims}
