"""A cluster as a graph: GPUs, switches and NICs, connected by directed links.

In: vertices, links and routing tables from build.py. Out: a `Topology`. Links are numbered: a path is a row of indices
into arrays of rates and latencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netmodel.cluster import Cluster
from netmodel.topology.links import LinkKind
from netmodel.topology.routing import Routes, find_path_parts, find_paths

__all__ = ["LinkKind", "Topology", "Vertex"]


@dataclass(frozen=True)
class Vertex:
    """A GPU, NIC, switch or CPU socket."""

    kind: str  # "gpu", "nvswitch", "pcie" (a switch), "host" (a CPU socket), "nic", "switch"
    name: str  # "node3/gpu5", "rack0/nvswitch", "leaf2"
    node: int  # -1 for vertices between nodes
    level: int = 0  # of a switch; nodes are plugged in at level 0


@dataclass(frozen=True, eq=False)
class Topology:
    """The graph of the first `gpus` GPUs of a cluster. Rank r is GPU r % gpus_per_node of node r // gpus_per_node, and
    vertex r. Links 2i and 2i + 1 are the two directions of one cable. Nodes are built whole.
    """

    cluster: Cluster
    gpus: int
    vertices: tuple[Vertex, ...]
    source: NDArray[np.int32]  # [link] -> the vertex it leaves
    target: NDArray[np.int32]
    kind: NDArray[np.int8]  # LinkKind
    rate: NDArray[np.int64]  # bytes per second: the reduced rate of a slow link, the original rate of a lost one
    latency: NDArray[np.int64]  # ns of the cable and of the vertex at its end
    lost: NDArray[np.bool_]  # no path uses a lost link
    routes: Routes = field(repr=False)
    _paths: dict[tuple[int, int, int, int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def nodes(self) -> int:
        """The number of nodes that hold these GPUs."""
        return -(-self.gpus // self.cluster.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.cluster.gpus_per_node

    def domain_of(self, rank: int) -> int:
        """The domain of a rank: a node, or an NVL72 rack, whose ranks reach each other over GPU links."""
        return self.node_of(rank) // self.cluster.gpu_link_nodes

    def nics_of(self, rank: int) -> tuple[int, ...]:
        """The working NICs nearest to a rank's GPU, as indices in its node."""
        if not 0 <= rank < self.gpus:
            raise ValueError(f"there is no rank {rank}: this topology has GPUs 0 to {self.gpus - 1}")
        return tuple(self.routes.nics[rank, : self.routes.nic_counts[rank]].tolist())

    def path(
        self, source: int, target: int, *, source_nic: int | None = None, target_nic: int | None = None, flow: int = 0
    ) -> tuple[int, ...]:
        """The links from one rank's GPU to another's: GPU links inside a domain; between domains through one NIC on
        each side, the nearest unless given (`flow` selects among several nearest). Among equal paths a hash of the ends
        and of `flow` decides, as in ECMP.
        """
        key = (source, target, -1 if source_nic is None else source_nic, -1 if target_nic is None else target_nic, flow)
        if key not in self._paths:
            row = self.paths([source], [target], source_nic=[key[2]], target_nic=[key[3]], flow=[flow])[0]
            self._paths[key] = tuple(row.tolist())
        return self._paths[key]

    def paths(
        self,
        source: Sequence[int] | ArrayLike,
        target: Sequence[int] | ArrayLike,
        *,
        source_nic: ArrayLike = -1,
        target_nic: ArrayLike = -1,
        flow: ArrayLike = 0,
    ) -> NDArray[np.int32]:
        """`path` for many pairs: one row each, -1 after its end. A scalar applies to all pairs; a NIC of -1 means the
        nearest.
        """
        return find_paths(self.routes, *self._checked(source, target, source_nic, target_nic, flow))

    def path_parts(
        self,
        source: ArrayLike,
        target: ArrayLike,
        source_nic: ArrayLike = -1,
        target_nic: ArrayLike = -1,
        flow: ArrayLike = 0,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int32]]]:
        """`paths` in parts, which is faster than one array. Each part has the indices of some pairs and one row of
        links for each, with -1 anywhere. The path of a pair is the links of its rows, in the order of the parts."""
        return find_path_parts(self.routes, *self._checked(source, target, source_nic, target_nic, flow))

    def _checked(self, *ends: ArrayLike) -> list[NDArray[np.int64]]:
        """Source, target, their NICs and the flow, as arrays of the same length."""
        arrays = [np.asarray(value, np.int64) for value in ends]
        source, target, source_nic, target_nic, flow = (value.ravel() for value in np.broadcast_arrays(*arrays))
        self._check(source)
        self._check(target)
        for nic in (source_nic, target_nic):
            if nic.size and (nic.max() >= self.cluster.nics_per_node or nic.min() < -1):
                most = self.cluster.nics_per_node - 1
                raise ValueError(f"a node of {self.cluster.key} has NICs 0 to {most}; {nic.max()} is not one of them")
        return [source, target, source_nic, target_nic, flow]

    def path_latency(self, path: Sequence[int]) -> int:
        """The latency of a path in ns, without contention."""
        return int(self.latency[list(path)].sum())

    def _check(self, ranks: NDArray[np.int64]) -> None:
        if ranks.size and (ranks.min() < 0 or ranks.max() >= self.gpus):
            wrong = int(ranks.min()) if ranks.min() < 0 else int(ranks.max())
            raise ValueError(f"there is no rank {wrong}: this topology has GPUs 0 to {self.gpus - 1}")
