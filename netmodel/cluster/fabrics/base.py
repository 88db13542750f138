"""The base of all fabrics: the rate and latency of links, and the wiring for a number of nodes.

Fabrics do without numpy, so that reading a cluster's file stays cheap.

In: the number of nodes, and of NICs per node. Out: `Wiring`: switches, the cables between them, and the switch that
each NIC is plugged into.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from netmodel.cluster.keys import ClusterError, Keys

# ecmp: a hash of both ends selects the path, so flows collide. d-mod-k: the destination alone selects it, as in
# InfiniBand's static tables. adaptive: packets are spread over all equal paths (InfiniBand's adaptive routing, EFA's
# SRD, Spectrum-X).
ROUTINGS = ("ecmp", "d-mod-k", "adaptive")


@dataclass(frozen=True)
class Switch:
    """A switch of the fabric. Nodes are plugged in at level 0."""

    name: str
    level: int
    group: str = ""  # adaptive routing merges the switches of a group into one; "": it is never merged


@dataclass(frozen=True)
class Cable:
    """A cable between two switches, by their indices in `Wiring.switches`; both directions."""

    lower: int
    upper: int
    rate: int
    latency: int
    cost: int = 1  # routing minimises the sum of costs


@dataclass(frozen=True)
class Wiring:
    """A fabric as built for a number of nodes."""

    switches: tuple[Switch, ...]
    cables: tuple[Cable, ...]
    attached: tuple[tuple[int, ...], ...]  # [node][NIC] -> the switch it is plugged into

    @property
    def ports(self) -> int:
        """The number of NICs that are plugged in."""
        return sum(len(row) for row in self.attached)


@dataclass(frozen=True)
class Fabric(ABC):
    """The network between nodes. Rates are per direction, in bytes per second; latencies in ns."""

    kind: ClassVar[str]
    own_keys: ClassVar[Keys]  # its keys besides those of all fabrics
    required: ClassVar[tuple[str, ...]] = ()
    rate: int  # per cable between switches
    link_latency: int  # per cable
    switch_latency: int  # from port to port
    routing: str  # one of ROUTINGS
    sharp: bool  # switches can reduce (SHARP)
    connections: int = field(default=1, kw_only=True)  # between two NICs; ECMP hashes each one separately

    def __post_init__(self) -> None:
        if self.routing == "adaptive":
            raise ClusterError(
                f'fabric.routing: "adaptive" is for fat-tree or rail-optimised; for {self.kind} use "ecmp" or "d-mod-k"'
            )

    @abstractmethod
    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        """The wiring for `nodes` nodes; ClusterError if they do not fit."""

    @abstractmethod
    def summary(self) -> str:
        """A short description."""
