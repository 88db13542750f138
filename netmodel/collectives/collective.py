"""`Collective`, the input of a network model, and `CollectiveEstimate`, its result.

In: a collective as NCCL receives it. Out: its duration in integer nanoseconds, the algorithm and protocol that NCCL
would use, and the origin of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
)


@dataclass(frozen=True)
class Transfer:
    """One send/recv from one member to another, by their indices in `Collective.members`."""

    source: int
    target: int
    size: int


@dataclass(frozen=True)
class Collective:
    """One call of every member. `size` is counted as nccl-tests does: the buffer of an all-reduce, broadcast or reduce;
    the larger of the two buffers of an all-gather or reduce-scatter; one rank's whole send buffer of an all-to-all.
    A send_recv without `transfers` is that of nccl-tests: every member sends the whole buffer to the next one.
    """

    operation: str  # one of OPERATIONS
    size: int  # bytes; the sum of `transfers` if there are any
    members: tuple[int, ...]  # ranks of the job, in the order of the communicator
    root: int = 0  # index in `members` of the root of broadcast and reduce
    transfers: tuple[Transfer, ...] = ()  # for send_recv, and all_to_all with unequal parts
    dtype: str = "bfloat16"  # as torch names it: NVSwitch reduces floating point only


@dataclass(frozen=True)
class CollectiveEstimate:
    """The duration of a collective that has the network to itself."""

    ns: int
    algorithm: str  # as in NCCL_ALGO: "ring", "tree", "nvls", "nvlstree", "collnetdirect", "collnetchain", or "p2p"
    protocol: str  # as in NCCL_PROTO: "ll", "ll128", "simple"
    channels: int
    latency_ns: int  # the duration with zero bytes
    origin: (
        str  # of the cluster's parameters: "fitted" to measurements, "transferred" from a similar machine, "datasheet"
    )


def bus_factor(operation: str, ranks: int) -> float:
    """The factor from algorithm bandwidth to bus bandwidth, as nccl-tests defines it."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in ("all_gather", "reduce_scatter", "all_to_all") else 1.0
