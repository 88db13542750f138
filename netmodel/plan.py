"""How NCCL carries out one collective: which bytes cross which links, and what it costs before the first byte.

A plan belongs to (operation, algorithm, protocol, members) and serves every size. Both levels of detail evaluate plans:
the analytic one with the network to itself (analytic.py), the flow level with whatever else is in flight (flow.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Flow:
    """Bytes that move in step: a pipelined ring or tree is as fast as its slowest link, a message is one path."""

    links: NDArray[np.int32]  # indices into the topology's links, each at most once
    loads: NDArray[np.float64]  # bytes that cross that link, per byte of the collective's size


@dataclass(frozen=True)
class Plan:
    """What the members of one collective do to the links between them."""

    algorithm: str
    protocol: str
    channels: int
    flows: tuple[Flow, ...]
    latency_ns: float  # of an empty message
    efficiency: NDArray[np.float64]  # by LinkKind: the share of a link's rate that this protocol reaches
