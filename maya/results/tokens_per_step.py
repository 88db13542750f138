"""How many tokens (or images) a training step processes, from the inputs of embeddings and convolutions.

In: a `Timeline` and its `Steps`. Out: `Samples`, with the source of the number; `SamplesUnknown` with the reason if the
traces leave it open. Tokens are the indices [batch, sequence] of the embedding with the largest table
(`aten::embedding`). Embeddings whose results are added before the first GEMM belong to the same tokens (tokens and
positions). Other embeddings of the same forward pass may belong to the same tokens or to others (a decoder's, a second
batch's), so the number stays unknown. Backward passes and send/recv (of a pipeline) separate forward passes; embeddings
inside a backward pass are recomputation. Ranks that all-reduce activations of exactly that many tokens in a forward
pass (tensor parallelism) process the same tokens, so these count once. Without embeddings, images are the input of the
first convolution over at most four channels. All of this is read from the ranks' traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.replay.rank_class import CollectiveCall, RankClass
from maya.replay.record_kinds import P2P_CALLS
from maya.replay.timeline import Timeline
from maya.results.forward_backward import in_backward, passes_of
from maya.results.steps import GroupSteps, Steps
from maya.trace import RecordKind
from maya.util.arrays import Indices

GIVEN = "given"
_MOST_IMAGE_CHANNELS = 4
_LARGE_TABLE = 4  # a table with at least 1/4 of the rows of the largest one may hold another vocabulary
_EMBEDDING = "aten::embedding"
_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution", "aten::_convolution")
_ADDITIONS = ("aten::add", "aten::add_")


class SamplesUnknown(Exception):
    """The traces do not show how many tokens or images a step processes; the text says why."""


@dataclass(frozen=True)
class Samples:
    """Tokens or images in a step of the whole job."""

    per_step: int
    unit: str  # "tokens" or "images"
    source: str  # GIVEN, or the op that showed it
    batch: tuple[int, ...] = ()  # shape of the first embedding's indices, or of the images


@dataclass(frozen=True)
class _RankSamples:
    """Tokens or images in a step of one rank of a rank class."""

    per_step: int
    rows: int  # tokens or images of one forward pass
    width: int  # elements of a token's embedding
    unit: str
    op: str
    batch: tuple[int, ...]


@dataclass(frozen=True)
class _Op:
    """An embedding or convolution over images of a forward pass, or an addition of two tensors."""

    op: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of table and indices, images and weights, or the two addends
    forward: tuple[int, int]  # identifies the forward pass: number of backward rows and of sends and recvs before it
    heavy: int  # GEMMs and other heavy rows before it

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of the indices, or of the images."""
        return self.shapes[1] if self.op == _EMBEDDING else self.shapes[0]

    @property
    def table(self) -> int:
        """The rows of the table, or the pixels of an image."""
        return self.shapes[0][0] if self.op == _EMBEDDING else prod(self.shapes[0][2:])

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of an embedding's output."""
        return *self.batch, self.shapes[0][1]


def find_samples(timeline: Timeline, steps: Steps) -> Samples:
    """Tokens or images in a step; raises `SamplesUnknown` if the traces do not show it."""
    if steps.batches > 1:
        raise SamplesUnknown(f"{steps.batches} optimizers take turns in a step, each after its own forward pass")
    by_rank_class: dict[int, _RankSamples | None] = {}
    for group, of in zip(timeline.groups, steps.groups, strict=True):
        if id(group.rank_class) not in by_rank_class:
            by_rank_class[id(group.rank_class)] = _rank_samples(group.rank_class, of, steps)
    seen = [by_rank_class[id(group.rank_class)] for group in timeline.groups]
    for unit in ("tokens", "images"):
        found = [(group, what) for group, what in zip(timeline.groups, seen, strict=True) if what and what.unit == unit]
        if found:
            total = 0
            counted: set[int] = set()
            for group, what in found:
                sharing = _sharing_communicators(group.rank_class, what)
                for column, rank in enumerate(group.ranks.tolist()):
                    if rank in counted:
                        continue
                    total += what.per_step
                    for number in sharing:
                        counted.update(group.communicators[column].get(number, ()))
            first = found[0][1]
            return Samples(total, unit, first.op, first.batch)
    if _has_compiled_embedding(timeline):
        raise SamplesUnknown("the embedding is inside compiled code")
    raise SamplesUnknown("no embedding of [batch, sequence] and no convolution over images was recorded")


def most_samples(timeline: Timeline, steps: Steps) -> Samples:
    """At most as many samples as a step has, of a timeline with one rank: as if all ranks had as many, apart from those
    that process the same ones."""
    own = find_samples(timeline, steps)
    group = timeline.groups[0]
    what = _rank_samples(group.rank_class, steps.groups[0], steps)
    numbers = set() if what is None else _sharing_communicators(group.rank_class, what)
    sharing = {rank for number in numbers for rank in group.communicators[0].get(number, ())}
    ranks = -(-timeline.world_size // max(1, len(sharing)))
    return Samples(own.per_step * ranks, own.unit, own.source, own.batch)


def _has_compiled_embedding(timeline: Timeline) -> bool:
    """Whether torch.compile fused an embedding into a kernel that was launched."""
    for group in timeline.groups:
        trace = group.rank_class.trace
        for number in np.unique(trace.select(RecordKind.KERNEL)["signature"]).tolist():
            name = str(trace.signature(number).get("kernel", ""))
            if name.startswith("triton_") and "_embedding" in name:
                return True
    return False


def _rank_samples(rank_class: RankClass, steps: GroupSteps, all_steps: Steps) -> _RankSamples | None:
    step = all_steps.typical
    ops = _forward_ops(rank_class, int(steps.rows[step]), int(steps.rows[step + 1]))
    tokens = [one for one in ops if one.op == _EMBEDDING]
    if tokens:
        return _tokens(tokens, [one for one in ops if one.op in _ADDITIONS])
    for op in _CONVOLUTIONS:  # one calls the other
        images = [one for one in ops if one.op == op]
        if images:
            return _images(images)
    return None


def _forward_ops(rank_class: RankClass, first_row: int, last_row: int) -> list[_Op]:
    """Embeddings, convolutions over images and additions between two rows, without recomputation."""
    trace = rank_class.trace
    first, last = (_position(rank_class, row) for row in (first_row, last_row))
    positions = first + np.flatnonzero(trace.records["kind"][first:last] == RecordKind.OP)
    numbers = trace.records["signature"][positions]
    described = {
        number: what
        for number in np.unique(numbers).tolist()
        if (what := _described(trace.signature(number))) is not None
    }
    chosen = np.isin(numbers, np.array(list(described), dtype=np.uint32))
    chosen[chosen] = ~in_backward(trace, trace.records["op"][positions[chosen]])
    passes = passes_of(rank_class)
    is_p2p = np.array([call.call in P2P_CALLS for call in rank_class.calls] or [False])
    p2p = np.flatnonzero(is_p2p[np.maximum(rank_class.call, 0)] & (rank_class.call >= 0))
    found = []
    for position, number in zip(positions[chosen].tolist(), numbers[chosen].tolist(), strict=True):
        row = int(np.searchsorted(rank_class.records, position)) - 1  # an op is recorded when it ends
        forward = int(np.searchsorted(passes.backward, row)), int(np.searchsorted(p2p, row))
        op, shapes = described[number]
        found.append(_Op(op, shapes, forward, int(np.searchsorted(passes.heavy, row))))
    return found


def _position(rank_class: RankClass, row: int) -> int:
    """The position of a row in the trace."""
    return int(rank_class.records[row]) if row < len(rank_class.records) else len(rank_class.trace.records)


def _described(signature: dict[str, Any]) -> tuple[str, tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The op and the shapes of its first two tensors, if the op is relevant here."""
    op, inputs = str(signature.get("op", "")), signature.get("inputs", [])[:2]
    if len(inputs) < 2 or not all(isinstance(one, dict) and "shape" in one for one in inputs):
        return None
    first, second = (tuple(one["shape"]) for one in inputs)
    is_embedding = op == _EMBEDDING and len(first) == 2 and str(inputs[1].get("dtype", "")).startswith("int")
    is_first_convolution = op in _CONVOLUTIONS and len(first) == 4 and first[1] <= _MOST_IMAGE_CHANNELS
    return (op, (first, second)) if is_embedding or is_first_convolution or op in _ADDITIONS else None


def _tokens(inputs: list[_Op], additions: list[_Op]) -> _RankSamples | None:
    largest = max(inputs, key=lambda one: one.table)
    inputs = [one for one in inputs if one.table * _LARGE_TABLE >= largest.table]
    total = 0
    batches: list[tuple[int, ...]] = []
    for forward in dict.fromkeys(one.forward for one in inputs):
        embeddings = [one for one in inputs if one.forward == forward]
        if len(embeddings) > 1:
            _check_that_outputs_are_added(embeddings, additions)
        batches.append(np.broadcast_shapes(*(one.batch for one in embeddings)))
        if len(batches[-1]) != 2:
            return None
        total += prod(batches[-1])
    return _RankSamples(total, prod(batches[0]), largest.shapes[0][1], "tokens", largest.op, batches[0])


def _check_that_outputs_are_added(embeddings: list[_Op], additions: list[_Op]) -> None:
    """Raise `SamplesUnknown` unless the outputs of a forward pass's embeddings are added, which shows that they belong
    to the same tokens."""
    where = {(one.forward, one.heavy) for one in embeddings}
    shapes = {one.output for one in embeddings}
    try:
        shapes.add(np.broadcast_shapes(*shapes))
    except ValueError:
        where = set()
    added = [one for one in additions if (one.forward, one.heavy) in where and set(one.shapes) <= shapes]
    if len(where) != 1 or len(added) < len(embeddings) - 1:
        listed = " and ".join(dict.fromkeys(str(list(one.batch)) for one in embeddings))
        raise SamplesUnknown(
            f"a forward pass has {len(embeddings)} embeddings, of {listed}, which may or may not be the same tokens"
        )


def _images(inputs: list[_Op]) -> _RankSamples:
    # Among the convolutions over few channels, the one over the largest image is the first of the network.
    pixels = max(one.table for one in inputs)
    inputs = [one for one in inputs if one.table == pixels]
    if len({one.forward for one in inputs}) < len(inputs):
        raise SamplesUnknown(f"a forward pass convolves images {list(inputs[0].batch)} more than once")
    total = sum(one.batch[0] for one in inputs)
    return _RankSamples(total, inputs[0].batch[0], 0, "images", inputs[0].op, inputs[0].batch)


def _sharing_communicators(rank_class: RankClass, what: _RankSamples) -> set[int]:
    """The communicators over which activations of these tokens are reduced in a forward pass. A gradient may have the
    same number of elements, but is reduced during or after a backward pass."""
    elements = what.rows * what.width
    if not elements:
        return set()
    sizes = _sizes(rank_class)
    return {
        call.communicator
        for call in _forward_calls(rank_class)
        if (call.call == "ncclAllReduce" and call.count == elements)
        or (call.call == "ncclReduceScatter" and call.count * sizes.get(call.communicator, 1) == elements)
    }


def _forward_calls(rank_class: RankClass) -> list[CollectiveCall]:
    """The calls that follow a GEMM or an embedding of a forward pass, with no backward pass between the two."""
    passes = passes_of(rank_class)
    rows = np.flatnonzero(rank_class.call >= 0)
    is_forward = _last_before(passes.forward, rows) > _last_before(passes.backward, rows)
    return [rank_class.calls[number] for number in np.unique(rank_class.call[rows[is_forward]]).tolist()]


def _last_before(rows: Indices, others: Indices) -> Indices:
    """For each of the others, the last one of the rows before it, or -1."""
    return np.concatenate([np.array([-1], rows.dtype), rows])[np.searchsorted(rows, others)]


def _sizes(rank_class: RankClass) -> dict[int, int]:
    """The number of members of each communicator."""
    calls: npt.NDArray[np.void] = rank_class.trace.select(RecordKind.COLLECTIVE)
    sizes: dict[int, int] = {}
    for number in np.unique(calls["signature"]).tolist():
        signature = rank_class.trace.signature(number)
        sizes[int(signature.get("communicator", 0))] = int(signature.get("ranks", 1))
    return sizes
