"""How many tokens (or images) a training step takes in, from what the ranks look up.

In: a `Timeline` and its `Steps`. Out: `Samples`, with where the number comes from. Tokens are the indices [batch,
sequence] that are looked up in the largest table (`aten::embedding`, indices of two dimensions); ranks that add up
activations of just that many tokens among each other (tensor parallelism) look up the same ones, so these count once.
Without embeddings, images are what the first convolution over at most four channels gets. All of it is read from the
ranks' traces; what no trace shows is not said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.timeline.timeline import Program, Timeline
from maya.results.steps import ClassSteps, Steps
from maya.trace import Kind

GIVEN = "given"
_MOST_IMAGE_CHANNELS = 4


@dataclass(frozen=True)
class Samples:
    """What a step of the whole job takes in."""

    per_step: int
    unit: str  # "tokens" or "images"
    source: str  # GIVEN, or the op that showed it
    batch: tuple[int, ...] = ()  # shape of the first look-up


@dataclass(frozen=True)
class _Seen:
    """What one class of ranks takes in, each of them."""

    per_step: int
    rows: int  # tokens or images of one look-up
    width: int  # elements of what is looked up for a token
    table: int  # rows of the table
    unit: str
    op: str
    batch: tuple[int, ...]


def find_samples(timeline: Timeline, steps: Steps) -> Samples | None:
    """What the traces show; None if they do not."""
    of_program: dict[int, _Seen | None] = {}
    for one, of in zip(timeline.classes, steps.classes, strict=True):
        if id(one.program) not in of_program:
            of_program[id(one.program)] = _seen(one.program, of, steps)
    seen = [of_program[id(one.program)] for one in timeline.classes]
    for unit in ("tokens", "images"):
        found = [(one, what) for one, what in zip(timeline.classes, seen, strict=True) if what and what.unit == unit]
        if found:
            total = 0
            counted: set[int] = set()
            for one, what in found:
                sharing = _sharing_communicators(one.program, what)
                for column, rank in enumerate(one.ranks.tolist()):
                    if rank in counted:
                        continue
                    total += what.per_step
                    for number in sharing:
                        counted.update(one.communicators[column].get(number, ()))
            first = found[0][1]
            return Samples(total, unit, first.op, first.batch)
    return None


def looks_up_in_compiled_code(timeline: Timeline) -> bool:
    """Whether kernels were launched into which torch.compile has fused what looks up rows of a table."""
    for one in timeline.classes:
        trace = one.program.trace
        for number in np.unique(trace.select(Kind.KERNEL)["signature"]).tolist():
            name = str(trace.signature(number).get("kernel", ""))
            if name.startswith("triton_") and "_embedding" in name:
                return True
    return False


def _seen(program: Program, steps: ClassSteps, all_steps: Steps) -> _Seen | None:
    trace = program.trace
    step = all_steps.typical
    first, last = (_position(program, int(steps.rows[at])) for at in (step, step + 1))
    records = trace.records[first:last]
    ops = records[records["kind"] == Kind.OP]
    numbers, counts = np.unique(ops["signature"], return_counts=True)
    tokens: list[_Seen] = []
    images: list[_Seen] = []
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        signature = trace.signature(number)
        if signature.get("op") == "aten::embedding":
            tokens += _look_up(signature.get("inputs", []), count)
        elif signature.get("op") in _CONVOLUTIONS:
            images += _images(str(signature["op"]), signature.get("inputs", []), count)
    if tokens:
        table = max(one.table for one in tokens)
        chosen = [one for one in tokens if one.table == table]
        return _sum(chosen)
    if images:
        return _sum([max(images, key=lambda one: one.table)])
    return None


_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution", "aten::_convolution")


def _position(program: Program, row: int) -> int:
    """Of a row of program.records in the trace."""
    return int(program.records[row]) if row < len(program.records) else len(program.trace.records)


def _look_up(inputs: list[Any], count: int) -> list[_Seen]:
    if len(inputs) < 2 or not all(isinstance(one, dict) and "shape" in one for one in inputs[:2]):
        return []
    table, indices = inputs[0]["shape"], inputs[1]["shape"]
    if len(table) != 2 or len(indices) != 2 or not str(inputs[1].get("dtype", "")).startswith("int"):
        return []
    rows = indices[0] * indices[1]
    return [_Seen(rows * count, rows, table[1], table[0], "tokens", "aten::embedding", tuple(indices))]


def _images(op: str, inputs: list[Any], count: int) -> list[_Seen]:
    if not inputs or not isinstance(inputs[0], dict) or len(inputs[0].get("shape", [])) != 4:
        return []
    shape = inputs[0]["shape"]
    if shape[1] > _MOST_IMAGE_CHANNELS:
        return []
    # Of convolutions over few channels the one over the largest image is the network's first.
    return [_Seen(shape[0] * count, shape[0], 0, shape[2] * shape[3], "images", op, tuple(shape))]


def _sum(seen: list[_Seen]) -> _Seen:
    first = seen[0]
    total = sum(one.per_step for one in seen)
    return _Seen(total, first.rows, first.width, first.table, first.unit, first.op, first.batch)


def _sharing_communicators(program: Program, what: _Seen) -> set[int]:
    """Communicators over which activations of these tokens are added up."""
    elements = what.rows * what.width
    if not elements:
        return set()
    sizes = _sizes(program)
    return {
        call.communicator
        for call in program.calls
        if (call.call == "ncclAllReduce" and call.count == elements)
        or (call.call == "ncclReduceScatter" and call.count * sizes.get(call.communicator, 1) == elements)
    }


def _sizes(program: Program) -> dict[int, int]:
    """Members of each communicator."""
    calls: npt.NDArray[np.void] = program.trace.select(Kind.COLLECTIVE)
    sizes: dict[int, int] = {}
    for number in np.unique(calls["signature"]).tolist():
        signature = program.trace.signature(number)
        sizes[int(signature.get("communicator", 0))] = int(signature.get("ranks", 1))
    return sizes
