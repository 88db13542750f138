"""What every fabric has: the rate and latency of its links, and the wiring it makes for so many nodes.

In: how many nodes, and how many NICs each has. Out: `Wiring`: switches, the cables between them, and the switch each
NIC is plugged into.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

ROUTINGS = ("ecmp", "d-mod-k")


@dataclass(frozen=True)
class Switch:
    """A switch of the fabric. Level 0 is where nodes are plugged in."""

    name: str
    level: int


@dataclass(frozen=True)
class Cable:
    """Both directions between two switches, by their places in `Wiring.switches`."""

    lower: int
    upper: int
    rate: int
    latency: int


@dataclass(frozen=True)
class Wiring:
    """A fabric as built for a number of nodes."""

    switches: tuple[Switch, ...]
    cables: tuple[Cable, ...]
    attached: NDArray[np.int32]  # [node, NIC] -> the switch it is plugged into


@dataclass(frozen=True)
class Fabric(ABC):
    """What joins nodes. Rates are of one direction, in bytes per second; latencies in ns."""

    kind: ClassVar[str]
    rate: int  # of a cable between switches
    link_latency: int  # of a cable
    switch_latency: int  # from port to port
    routing: str  # one of ROUTINGS
    sharp: bool  # switches can reduce (SHARP)

    @abstractmethod
    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        """The fabric for so many nodes; ClusterError if they do not fit."""

    @abstractmethod
    def summary(self) -> str:
        """In a few words, for people."""
