"""Collectives and send/recv as text for users: "all_reduce of 1024 fp32 sum"."""

from __future__ import annotations

from collections.abc import Sequence

from rank_runtime.messages import Call, DataType, Post, Reduction

_FLOATING = {
    DataType.FLOAT16: "fp16",
    DataType.FLOAT32: "fp32",
    DataType.FLOAT64: "fp64",
    DataType.BFLOAT16: "bf16",
}
DATA_TYPES = [
    _FLOATING.get(kind, kind.name.lower().replace("float8", "fp8")) for kind in DataType
]  # indexed by number; names as in traces
_REDUCTIONS = (Call.ALL_REDUCE, Call.REDUCE, Call.REDUCE_SCATTER)
_PREPOSITIONS = {
    Call.REDUCE: "to",
    Call.GATHER: "to",
    Call.BROADCAST: "from",
    Call.SCATTER: "from",
    Call.SEND: "to",
    Call.RECEIVE: "from",
}


def call_text(call: int, count: int, data_type: int, reduction: int, peer: int, members: Sequence[int]) -> str:
    """`all_reduce of 1024 fp32 sum`, `broadcast of 10 int64 from rank 8`."""
    kind = Call(call)
    text = f"{kind.name.lower()} of {count} {DATA_TYPES[data_type]}"
    if kind in _REDUCTIONS:
        text += f" {Reduction(reduction).name.lower()}"
    if kind in _PREPOSITIONS:
        name = f"rank {members[peer]}" if 0 <= peer < len(members) else f"member {peer} (out of range)"
        text += f" {_PREPOSITIONS[kind]} {name}"
    return text


def post_text(post: Post, members: Sequence[int]) -> str:
    return call_text(post.call, post.count, post.data_type, post.reduction, post.peer, members)
