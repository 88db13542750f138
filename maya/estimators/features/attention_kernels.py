"""Attention: flash, memory-efficient and cuDNN kernels, forward and backward -> a `Kernel` of class ATTENTION.

The backward is several kernels: one before (row sums of gradient times output), the main one, one after (cast of the
queries' gradient). Measurements cover all of them, so the main kernel stands for the whole backward, and the others are
kernels without bytes, of variant "part_of_attention".
"""

from __future__ import annotations

from typing import Any

from maya.estimators.features.launch import KernelLaunch
from maya.estimators.kernel import Kernel, KernelClass
from maya.estimators.models.attention import attention_kernel, causal_pairs

_PART_NAMES = ("dot_do_o", "convert_dq", "convert_dkv", "combine", "preprocess", "postprocess")


def attention_of_launch(launch: KernelLaunch) -> Kernel | None:
    """torch's flash and memory-efficient kernels, and those of the flash-attention package."""
    name = launch.function
    backward = "bwd" in name or "cutlassB" in name or "ackward" in launch.op
    if any(part in name for part in _PART_NAMES):
        return Kernel(KernelClass.ELEMENTWISE, _dtype(launch), 0.0, 0.0, 0.0, {}, "part_of_attention")
    implementation = "efficient" if "cutlass" in name or "efficient" in launch.op else "flash"
    if "cudnn" in launch.op or "cudnn" in name:
        implementation = "cudnn"
    elif "Sm100" in name or "sm100" in name:
        implementation = "flash4"
    elif "sm90" in name or "device_kernel" in name or "FlashAttnFwdSm90" in launch.name:
        implementation = "flash3"
    return _problem(launch, implementation, backward)


def _problem(launch: KernelLaunch, implementation: str, backward: bool) -> Kernel | None:
    start = 1 if backward else 0  # the gradient comes first
    query, key, value = (launch.tensor(start + i) for i in range(3))
    if query is None or key is None or value is None or len(query.shape) not in (3, 4):
        return None
    causal = _causal(launch)
    sequences = _sequences(launch)
    if len(query.shape) == 3:  # tokens of all sequences, heads, head size
        batch, (queries, heads, size), (keys, kv_heads, _) = 1, query.shape, key.shape
        sequences = sequences or 1
    elif "_scaled_dot_product" in launch.op or launch.op_name.startswith("_cudnn_attention"):
        (batch, heads, queries, size), (_, kv_heads, keys, _) = query.shape, key.shape
    else:
        (batch, queries, heads, size), (_, keys, kv_heads, _) = query.shape, key.shape
    if sequences and batch == 1:
        # Only the mean length of packed sequences is known.
        batch, queries, keys = sequences, max(queries // sequences, 1), max(keys // sequences, 1)
    # FlashAttention aligns its causal mask at the bottom right: the last query sees all keys. This is linear in the
    # number of keys, so that the mean length of packed sequences gives their sum.
    aligned_right = causal and implementation.startswith("flash") and keys > queries
    pairs = batch * (causal_pairs(queries, queries) + queries * float(keys - queries)) if aligned_right else None
    return attention_kernel(
        batch,
        heads,
        queries,
        size,
        keys=keys,
        kv_heads=kv_heads,
        value_dim=value.shape[-1],
        pairs=pairs,
        causal=causal,
        dtype=query.dtype,
        implementation=implementation,
        backward=backward,
    )


def _sequences(launch: KernelLaunch) -> int:
    """The number of packed sequences, from the offsets (int32, one more than sequences); 0: none."""
    offsets = [t for t in launch.tensors if t.dtype == "int32" and len(t.shape) == 1 and t.elements > 1]
    return offsets[0].elements - 1 if offsets else 0


# The input of an op that says it is causal: (position, value).
_CAUSAL: dict[str, tuple[int, Any]] = {
    "_flash_attention_forward": (8, True),
    "_flash_attention_backward": (11, True),
    "_efficient_attention_forward": (9, 1),
    "_efficient_attention_backward": (14, 1),
    "_scaled_dot_product_flash_attention": (4, True),
    "_scaled_dot_product_efficient_attention": (6, True),
    "scaled_dot_product_attention": (5, True),
}


def _causal(launch: KernelLaunch) -> bool:
    known = _CAUSAL.get(launch.op_name)
    if known is not None:
        position, value = known
        return position < len(launch.inputs) and launch.inputs[position] == value
    return "Causal" in launch.function or any(value is True for value in launch.inputs)


def _dtype(launch: KernelLaunch) -> str:
    return launch.tensors[0].dtype if launch.tensors else "bf16"


def cudnn_attention(operation: dict[str, Any]) -> Kernel:
    """An attention operation of a cuDNN graph."""
    return attention_kernel(
        operation["batch"],
        operation["heads"],
        operation["sequence_q"],
        operation["head_size_qk"],
        keys=operation["sequence_kv"],
        kv_heads=operation["kv_heads"],
        value_dim=operation["head_size_v"],
        causal=bool(operation.get("causal")),
        dtype=operation["type"],
        implementation="cudnn",
        backward=operation["op"] == "attention_backward",
    )
