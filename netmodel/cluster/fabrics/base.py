"""What every fabric has: the rate and latency of its links, and the wiring it makes for so many nodes.

Fabrics do without numpy, so that reading a cluster's file stays cheap.

In: how many nodes, and how many NICs each has. Out: `Wiring`: switches, the cables between them, and the switch each
NIC is plugged into.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from netmodel.cluster.keys import ClusterError, Keys

# ecmp: a hash of both ends chooses, so flows collide. d-mod-k: the destination alone chooses, as in InfiniBand's static
# tables. adaptive: packets are spread over all equal paths (InfiniBand's adaptive routing, EFA's SRD, Spectrum-X).
ROUTINGS = ("ecmp", "d-mod-k", "adaptive")


@dataclass(frozen=True)
class Switch:
    """A switch of the fabric. Level 0 is where nodes are plugged in."""

    name: str
    level: int
    group: str = ""  # what adaptive routing makes one of it and its like; none: it stays alone


@dataclass(frozen=True)
class Cable:
    """Both directions between two switches, by their places in `Wiring.switches`."""

    lower: int
    upper: int
    rate: int
    latency: int
    cost: int = 1  # paths are those of least cost


@dataclass(frozen=True)
class Wiring:
    """A fabric as built for a number of nodes."""

    switches: tuple[Switch, ...]
    cables: tuple[Cable, ...]
    attached: tuple[tuple[int, ...], ...]  # [node][NIC] -> the switch it is plugged into

    @property
    def ports(self) -> int:
        """How many NICs are plugged in."""
        return sum(len(row) for row in self.attached)


@dataclass(frozen=True)
class Fabric(ABC):
    """What joins nodes. Rates are of one direction, in bytes per second; latencies in ns."""

    kind: ClassVar[str]
    own_keys: ClassVar[Keys]  # of its own, besides those of all fabrics
    required: ClassVar[tuple[str, ...]] = ()
    rate: int  # of a cable between switches
    link_latency: int  # of a cable
    switch_latency: int  # from port to port
    routing: str  # one of ROUTINGS
    sharp: bool  # switches can reduce (SHARP)
    connections: int = field(default=1, kw_only=True)  # of two NICs, each of which ECMP hashes on its own

    def __post_init__(self) -> None:
        if self.routing == "adaptive":
            raise ClusterError(
                f'fabric.routing: "adaptive" is for fat-tree or rail-optimised; for {self.kind} use "ecmp" or "d-mod-k"'
            )

    @abstractmethod
    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        """The fabric for so many nodes; ClusterError if they do not fit."""

    @abstractmethod
    def summary(self) -> str:
        """In a few words, for people."""
