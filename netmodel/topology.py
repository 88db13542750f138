"""A cluster as a graph: GPUs, switches and NICs, joined by links of one direction each.

In: a `Cluster` and how many of its GPUs are used. Out: a `Topology`, whose links are numbered, so that whoever asks for
a path gets indices into arrays of rates and latencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster import Cluster


class LinkKind(IntEnum):
    """What a link is made of: its efficiency is calibrated by kind."""

    NVLINK = 0
    PCIE = 1
    NETWORK = 2


@dataclass(frozen=True)
class Vertex:
    """A place where links end."""

    kind: str  # "gpu", "nvswitch", "pcie", "nic", "switch"
    name: str  # "node3/gpu5", "leaf2"
    node: int  # -1 in the fabric between nodes


@dataclass(frozen=True)
class Topology:
    """The graph of the first `gpus` GPUs of a cluster. Rank r is GPU r % gpus_per_node of node r // gpus_per_node."""

    cluster: Cluster
    gpus: int
    vertices: tuple[Vertex, ...]
    source: NDArray[np.int32]  # of link i: the vertex it leaves
    target: NDArray[np.int32]
    kind: NDArray[np.int8]  # LinkKind
    rate: NDArray[np.int64]  # bytes per second, as built: a slow link has what is left of it
    latency: NDArray[np.int64]  # ns, of the cable and of the switch it ends at

    def node_of(self, rank: int) -> int:
        """The node a rank is on."""
        return rank // self.cluster.gpus_per_node

    def domain_of(self, rank: int) -> int:
        """The ranks of one domain reach each other over GPU links: a node, or a rack of an NVL72."""
        return self.node_of(rank) // self.cluster.gpu_link_nodes

    def nics_of(self, rank: int) -> tuple[int, ...]:
        """The NICs nearest to a rank's GPU, as places in its node."""
        raise NotImplementedError

    def path(
        self, source: int, target: int, *, source_nic: int | None = None, target_nic: int | None = None, flow: int = 0
    ) -> tuple[int, ...]:
        """The links from one rank's GPU to another's. Inside a domain GPU links only; between domains through a NIC of
        each side, the nearest unless given. Among equal paths a hash of the ends and of `flow` decides, as ECMP does.
        """
        raise NotImplementedError
