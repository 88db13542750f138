"""Attention: flash, memory-efficient and cuDNN kernels, forward and backward -> a Work of kind ATTENTION.

The backward is several kernels: one before (row sums of gradient times output), the main one, one after (the queries'
gradient to its dtype). What was measured is always all of them together, so the main kernel is the whole backward, and
the others are works without bytes of their own, of variant "part_of_attention".
"""

from __future__ import annotations

from typing import Any

from maya.estimators.features.launch import Launch
from maya.estimators.features.tensors import Tensor, itemsize
from maya.estimators.work import Kind, Work

_BACKWARD = 2.5  # matrix products in the backward for each two in the forward
_PART_NAMES = ("dot_do_o", "convert_dq", "convert_dkv", "combine", "preprocess", "postprocess")


def attention_work(
    dtype: str, shape: dict[str, float], *, implementation: str, backward: bool, varlen: bool = False
) -> Work:
    """The work of attention with {batch, heads, kv_heads, sequence_q, sequence_kv, head_size, head_size_v, causal}."""
    pairs = shape["sequence_q"] * shape["sequence_kv"]
    if shape["causal"]:
        # The mask is aligned to the end (or the start) of the keys; a square one leaves half.
        short = min(shape["sequence_q"], shape["sequence_kv"])
        pairs -= short * (short - 1) / 2
    both_heads = shape["batch"] * shape["heads"]
    flops = 2.0 * both_heads * pairs * (shape["head_size"] + shape["head_size_v"]) * (_BACKWARD if backward else 1.0)
    size = itemsize(dtype)
    query = both_heads * shape["sequence_q"] * shape["head_size"] * size
    output = both_heads * shape["sequence_q"] * shape["head_size_v"] * size
    keys = shape["batch"] * shape["kv_heads"] * shape["sequence_kv"] * shape["head_size"] * size
    values = shape["batch"] * shape["kv_heads"] * shape["sequence_kv"] * shape["head_size_v"] * size
    statistics = both_heads * shape["sequence_q"] * 4.0
    if backward:
        read, written = query + keys + values + 2 * output + statistics, query + keys + values
    else:
        read, written = query + keys + values, output + statistics
    direction = "backward" if backward else "forward"
    variant = f"{implementation}_{direction}" + ("_varlen" if varlen else "")
    return Work(Kind.ATTENTION, dtype, flops, read, written, shape, variant)


def attention_kernel(launch: Launch) -> Work | None:
    """torch's flash and memory-efficient kernels, and those of flash-attention by themselves."""
    name = launch.function
    backward = "bwd" in name or "cutlassB" in name or "ackward" in launch.op
    if any(part in name for part in _PART_NAMES):
        return Work(Kind.ATTENTION, _dtype(launch), 0.0, 0.0, 0.0, {}, "part_of_attention")
    found = _problem(launch, backward)
    if found is None:
        return None
    shape, dtype, varlen = found
    implementation = "efficient" if "cutlass" in name or "efficient" in launch.op else "flash"
    if "cudnn" in launch.op or "cudnn" in name:
        implementation = "cudnn"
    return attention_work(dtype, shape, implementation=implementation, backward=backward, varlen=varlen)


def _problem(launch: Launch, backward: bool) -> tuple[dict[str, float], str, bool] | None:
    start = 1 if backward else 0  # the gradient comes first
    query, key, value = (launch.tensor(start + i) for i in range(3))
    if query is None or key is None or value is None or len(query.shape) < 3:
        return None
    heads_first = "_scaled_dot_product" in launch.op or launch.op_name.startswith("_cudnn_attention")
    causal = _causal(launch, backward)
    if len(query.shape) == 3:  # tokens of all sequences, heads, head size
        return (*_varlen(launch, query, key, value, causal), True)
    batch, second, third, size = query.shape
    _, key_second, key_third, _ = key.shape
    if heads_first:
        heads, kv_heads, sequence_q, sequence_kv = second, key_second, third, key_third
    else:
        heads, kv_heads, sequence_q, sequence_kv = third, key_third, second, key_second
    sequences = _sequences(launch)
    if sequences and batch == 1:
        batch, sequence_q, sequence_kv = sequences, sequence_q / sequences, sequence_kv / sequences
    return _shape(batch, heads, kv_heads, sequence_q, sequence_kv, size, value.shape[-1], causal), query.dtype, False


def _varlen(
    launch: Launch, query: Tensor, key: Tensor, value: Tensor, causal: bool
) -> tuple[dict[str, float], str]:
    """Sequences of different lengths: taken to be of the mean length."""
    sequences = _sequences(launch) or 1
    tokens, heads, size = query.shape
    kv_tokens, kv_heads, _ = key.shape
    mean, kv_mean = tokens / sequences, kv_tokens / sequences
    return _shape(sequences, heads, kv_heads, mean, kv_mean, size, value.shape[-1], causal), query.dtype


def _sequences(launch: Launch) -> int:
    """How many sequences are packed: the offsets (int32, one more than sequences) say so; 0: none are."""
    offsets = [t for t in launch.tensors if t.dtype == "int32" and len(t.shape) == 1 and t.elements > 1]
    return offsets[0].elements - 1 if offsets else 0


def _shape(
    batch: float, heads: float, kv_heads: float, queries: float, keys: float, size: float, value_size: float, causal: bool
) -> dict[str, float]:
    return {
        "batch": float(batch),
        "heads": float(heads),
        "kv_heads": float(kv_heads),
        "sequence_q": float(queries),
        "sequence_kv": float(keys),
        "head_size": float(size),
        "head_size_v": float(value_size),
        "causal": float(causal),
    }


# Where an op says that it is causal: (position, value).
_CAUSAL: dict[str, tuple[int, Any]] = {
    "_flash_attention_forward": (8, True),
    "_flash_attention_backward": (11, True),
    "_efficient_attention_forward": (9, 1),
    "_efficient_attention_backward": (14, 1),
    "_scaled_dot_product_flash_attention": (4, True),
    "_scaled_dot_product_efficient_attention": (6, True),
    "scaled_dot_product_attention": (5, True),
}


def _causal(launch: Launch, backward: bool) -> bool:
    known = _CAUSAL.get(launch.op_name)
    if known is not None:
        position, value = known
        return position < len(launch.inputs) and launch.inputs[position] == value
    return any(value is True for value in launch.inputs)


def _dtype(launch: Launch) -> str:
    return launch.tensors[0].dtype if launch.tensors else "bf16"


def cudnn_attention(operation: dict[str, Any]) -> Work:
    """An attention operation of a cuDNN graph."""
    shape = _shape(
        operation["batch"],
        operation["heads"],
        operation["kv_heads"],
        operation["sequence_q"],
        operation["sequence_kv"],
        operation["head_size_qk"],
        operation["head_size_v"],
        bool(operation.get("causal")),
    )
    backward = operation["op"] == "attention_backward"
    varlen = bool(operation.get("ragged"))
    return attention_work(operation["type"], shape, implementation="cudnn", backward=backward, varlen=varlen)
