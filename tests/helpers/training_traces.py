"""Traces of training jobs in miniature, with what results are read from: ops around their kernels, backward nodes,
optimizers, allocations.

rank = TrainingWriter(0)
with rank.opened("aten::linear"):
    rank.gemm(m=64, n=64, k=64)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.trace_writer import TraceWriter

from maya.replay.null_model import NullDurations, NullNetwork, null_settings
from maya.replay.run_settings import NO_COSTS, HostCosts
from maya.replay.simulate import simulate
from maya.replay.timeline import Timeline
from maya.trace import RecordKind

COMMUNICATION = 5  # a stream
NO_SEQUENCE = 0xFFFFFFFF


def tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    """An input of an op."""
    strides = [1] * len(shape)
    for at in range(len(shape) - 2, -1, -1):
        strides[at] = strides[at + 1] * shape[at + 1]
    return {"shape": list(shape), "dtype": dtype, "strides": strides}


class TrainingWriter(TraceWriter):
    """A rank that trains."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._open: list[int] = []
        self._events = 100
        self._blocks = 0

    @contextmanager
    def opened(
        self,
        name: str,
        inputs: Sequence[Any] = (),
        *,
        kind: RecordKind = RecordKind.OP,
        sequence: int = NO_SEQUENCE,
        details: Mapping[str, Any] | None = None,
        **fields: int,
    ) -> Iterator[None]:
        """An op or annotation around what is recorded meanwhile; `details` go into its signature."""
        self._ops += 1
        number, began, around = self._ops, 1000 * len(self._records), self._open[-1] if self._open else 0
        self._open.append(number)
        yield
        self._open.pop()
        signature = {"op": name, "inputs": list(inputs), **(details or {})}
        more = {"op": number, "stream": around, "host_ns": began, "value": sequence << 32, "ops": 0} | fields
        self.add(kind, signature, **more)

    def annotated(self, name: str, **details: Any) -> Any:
        return self.opened(name, kind=RecordKind.ANNOTATION, details=details)

    @property
    def _op(self) -> int:
        return self._open[-1] if self._open else 0

    def gemm(self, m: int = 64, n: int = 64, k: int = 64, layout: str = "TN", stream: int = 0, flags: int = 0) -> None:
        sizes = {"m": m, "n": n, "k": k, "transa": layout[0], "transb": layout[1], "a_type": "bf16", "b_type": "bf16"}
        signature = {"call": "cublasGemmEx", **sizes, "c_type": "bf16"}
        self.add(RecordKind.LIBRARY, signature, stream=stream, op=self._op, ops=1, flags=flags)

    def elementwise(self, name: str = "_ZN2at6native29vectorized_elementwise_kernelEv", stream: int = 0) -> None:
        self.kernel(name, stream=stream, op=self._op, ops=1)

    def reduce(self, communicator: int, count: int = 1024, stream: int = COMMUNICATION) -> None:
        """An all-reduce of what the default stream made, which goes on beside it."""
        self._events += 1
        self.after(stream, 0, self._events)
        self.collective(communicator, count=count, stream=stream)

    def join_streams(self, stream: int = COMMUNICATION) -> None:
        self._events += 1
        self.after(0, stream, self._events)

    def allocate(self, size: int, *, segment: int = 0) -> int:
        """A block of PyTorch's allocator, in a new segment of that many bytes if there is none left."""
        if segment:
            self.add(RecordKind.MALLOC, {"bytes": segment}, value=0x1000 * len(self._records))
        self._blocks += 1
        self.add(RecordKind.BLOCK_ALLOC, {"bytes": size}, value=self._blocks)
        return self._blocks

    def release(self, block: int) -> None:
        self.add(RecordKind.BLOCK_FREE, value=block)

    def optimizer(self, name: str = "AdamW", kernels: int = 1, number: int = 1) -> None:
        with self.annotated(f"Optimizer.step#{name}.step", optimizer=number):
            for _ in range(kernels):
                with self.opened("aten::_foreach_add_"):
                    self.elementwise("_ZN2at6native6updateEv")

    def zero_grad(self) -> None:
        with self.annotated("Optimizer.zero_grad#AdamW.zero_grad"):
            pass

    def batch(self, layers: int = 2, sequence: int = 0) -> None:
        """Forward and backward: a GEMM a layer, two in backward."""
        for layer in range(layers):
            with self.opened("aten::linear", [tensor(64, 64), tensor(64, 64)], sequence=sequence + layer):
                self.gemm()
        for layer in reversed(range(layers)):
            with (
                self.opened("AddmmBackward0", sequence=sequence + layer),
                self.opened("aten::mm", [tensor(64, 64), tensor(64, 64)], sequence=sequence + layer),
            ):
                self.gemm(layout="NN")
                self.gemm(layout="NT")

    def train(self, steps: int, layers: int = 2) -> None:
        for _ in range(steps):
            self.batch(layers)
            self.optimizer()
            self.zero_grad()


def timeline_of(
    folder: Path,
    ranks: Sequence[TraceWriter],
    host: HostCosts = NO_COSTS,
    network_ns: int = 0,
    **options: Any,
) -> Timeline:
    """Every kernel takes a millisecond, every collective as long as said."""
    for rank in ranks:
        rank.save(folder)
    settings = null_settings(len(ranks), host)
    return simulate(folder, settings, durations=NullDurations(), network=NullNetwork(network_ns), **options)
