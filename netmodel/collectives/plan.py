"""How NCCL carries out one collective: which bytes cross which links, and what it costs besides.

A plan belongs to (operation, algorithm, protocol, members) and serves a range of sizes. Both levels of detail evaluate
plans: the analytic one with the network to itself (analytic.py), the flow level with whatever else is in flight
(flow.py). In both, a collective takes `overhead_ns(size)`, and after that as long as its slowest flow.
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
    """Bytes that move in step: a pipelined ring or tree is as fast as its slowest link, a message is one path."""

    links: NDArray[np.int32]  # indices into the topology's links, each at most once
    loads: NDArray[np.float64]  # bytes that cross that link, per byte of the collective's size
    limit: float = math.inf  # bytes of the collective's size per second that its channels can move on free links


class LateFlows(Sequence[Flow]):
    """Flows that are made when the first of them is looked at: only the flow level does, and large groups have many."""

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
    """What the members of one collective do to the links between them, and what they do besides.

    Latency that a pipeline hides counts the less the more bytes there are to hide it behind: hypot(hidden_ns,
    transfer), where the transfer is what the bytes take on free links. Channels that work side by side drift apart like
    sums of independent delays, so that the last one lags by `lag` times the root of the transfer.
    """

    algorithm: str
    protocol: str
    channels: int
    flows: Sequence[Flow]
    efficiency: NDArray[np.float64]  # by LinkKind: the share of a link's rate that this protocol reaches
    ns_per_byte: float  # of the slowest flow with free links
    fixed_ns: float  # latency that nothing hides
    hidden_ns: float  # latency that a pipeline hides
    lag: float  # in units of the root of a nanosecond
    fill_ns_per_byte: float = 0.0  # hidden latency of filling a pipeline with its first pieces,
    fill_most: float = 0.0  # which are of at most so many bytes of the collective's size
    local_ns_per_byte: float = 0.0  # work inside the GPUs that no transfer overlaps with
    floor_ns: float = 0.0  # what the largest message took that the tuner sends another way: more bytes take no less

    @property
    def latency_ns(self) -> float:
        """Of an empty message that is carried out this way."""
        return self.fixed_ns + self.hidden_ns

    def overhead_ns(self, size: int) -> float:
        """What a collective of this size takes beyond its bytes' time on free links; never negative."""
        transfer = size * self.ns_per_byte
        hidden = self.hidden_ns + self.fill_ns_per_byte * min(size, self.fill_most)
        waiting = math.hypot(hidden, transfer) - transfer
        overhead = self.fixed_ns + waiting + self.lag * math.sqrt(transfer) + size * self.local_ns_per_byte
        return max(overhead, self.floor_ns - transfer)

    def duration_ns(self, size: int) -> float:
        """With the network to itself."""
        return self.overhead_ns(size) + size * self.ns_per_byte
