"""What a network is asked, and what it answers.

In: a collective as NCCL gets it. Out: its duration in integer nanoseconds, how NCCL would have run it, and where the
figures behind the duration come from.
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
    """One message from one member to another, by their places in `Collective.members`."""

    source: int
    target: int
    size: int


@dataclass(frozen=True)
class Collective:
    """One call of every member. `size` is counted as nccl-tests does: the buffer of an all-reduce, broadcast or reduce;
    the larger of the two buffers of an all-gather or reduce-scatter; one rank's whole send buffer of an all-to-all.
    A send_recv without `transfers` is nccl-tests' own: everyone sends the whole buffer to the next member.
    """

    operation: str  # one of OPERATIONS
    size: int  # bytes; with `transfers` the sum of theirs
    members: tuple[int, ...]  # ranks of the job, in the order of the communicator
    root: int = 0  # the place in `members`, of broadcast and reduce
    transfers: tuple[Transfer, ...] = ()  # of send_recv and of an all_to_all with unequal parts: a group of messages
    dtype: str = "bfloat16"  # as torch names it: NVSwitch reduces floating point only


@dataclass(frozen=True)
class CollectiveEstimate:
    """How long a collective takes that has the network to itself."""

    ns: int
    algorithm: str  # as in NCCL_ALGO: "ring", "tree", "nvls", "nvlstree", "collnetdirect", "collnetchain", or "p2p"
    protocol: str  # as in NCCL_PROTO: "ll", "ll128", "simple"
    channels: int
    latency_ns: int  # the part that an empty message would take
    origin: str  # of the cluster's parameters: "fitted" to measurements, "transferred" from a like machine, "datasheet"


def bus_factor(operation: str, ranks: int) -> float:
    """From the bandwidth an algorithm reaches to what its links carry, as nccl-tests counts."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in ("all_gather", "reduce_scatter", "all_to_all") else 1.0
