"""How NCCL carries out one collective: the bytes on every link, and the costs besides the bytes.

A plan belongs to (operation, algorithm, protocol, members) and serves a range of sizes. Both levels of detail evaluate
plans: the analytic level with the network to itself (analytic.py), the flow level with everything else in flight
(netmodel/flow). In both, a collective takes `overhead_ns(size)`, and after that as long as its slowest flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Flow:
    """Bytes that move in step: a pipelined ring or tree, as fast as its slowest link, or the path of one send."""

    links: NDArray[np.int32]  # indices into the topology's links, each at most once
    loads: NDArray[np.float64]  # bytes that cross that link, per byte of the collective's size
    limit: float = math.inf  # bytes of the collective's size per second that its channels can move on free links


class LateFlows(Sequence[Flow]):
    """Flows that are made on first access: only the flow level needs them, and large groups have many."""

    def __init__(self, count: int, make: Callable[[], Sequence[Flow]]) -> None:
        self._count = count
        self._make = make

    @cached_property
    def _flows(self) -> Sequence[Flow]:
        return self._make()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Flow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Flow]: ...

    def __getitem__(self, index: int | slice) -> Flow | Sequence[Flow]:
        return self._flows[index]


@dataclass(frozen=True, eq=False)
class Plan:
    """The flows of one collective, and its costs besides the bytes.

    The more bytes there are, the less the latency counts that a pipeline hides: hypot(hidden_ns, transfer), where
    `transfer` is the time of the bytes on free links. Parallel channels drift apart like sums of independent delays, so
    the last one lags by `lag` times the square root of the transfer.
    """

    algorithm: str
    protocol: str
    channels: int
    flows: Sequence[Flow]
    efficiency: NDArray[np.float64]  # by LinkKind: the share of a link's rate that this protocol reaches
    ns_per_byte: float  # of the slowest flow with free links
    fixed_ns: float  # latency that nothing hides
    hidden_ns: float  # latency that a pipeline hides
    lag: float  # in square roots of a nanosecond
    fill_ns_per_byte: float = 0.0  # hidden latency of filling a pipeline with its first pieces
    fill_most: float = 0.0  # largest size of these first pieces, in bytes of the collective's size
    local_ns_per_byte: float = 0.0  # time inside the GPUs that no transfer overlaps
    floor_ns: float = 0.0  # duration of the largest size of the plan before: more bytes never take less time

    @property
    def latency_ns(self) -> float:
        """The duration with zero bytes."""
        return self.fixed_ns + self.hidden_ns

    def overhead_ns(self, size: int) -> float:
        """The time beyond that of the bytes on free links; never negative."""
        transfer = size * self.ns_per_byte
        hidden = self.hidden_ns + self.fill_ns_per_byte * min(size, self.fill_most)
        waiting = math.hypot(hidden, transfer) - transfer
        overhead = self.fixed_ns + waiting + self.lag * math.sqrt(transfer) + size * self.local_ns_per_byte
        return max(overhead, self.floor_ns - transfer)

    def duration_ns(self, size: int) -> float:
        """The duration with the network to itself."""
        return self.overhead_ns(size) + size * self.ns_per_byte
