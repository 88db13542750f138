"""A cluster as a graph: GPUs, switches and NICs, joined by links of one direction each.

In: what build.py makes of a `Cluster` and how many of its GPUs are used. Out: a `Topology`, whose links are numbered,
so that whoever asks for a path gets indices into arrays of rates and latencies.
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
    """A place where links end."""

    kind: str  # "gpu", "nvswitch", "pcie" (a switch), "host" (a CPU socket), "nic", "switch"
    name: str  # "node3/gpu5", "rack0/nvswitch", "leaf2"
    node: int  # -1 in what joins nodes
    level: int = 0  # of a switch: 0 where nodes are plugged in


@dataclass(frozen=True, eq=False)
class Topology:
    """The graph of the first `gpus` GPUs of a cluster. Rank r is GPU r % gpus_per_node of node r // gpus_per_node, and
    vertex r. Links 2i and 2i + 1 are the two directions of one cable. Nodes are built whole.
    """

    cluster: Cluster
    gpus: int
    vertices: tuple[Vertex, ...]
    source: NDArray[np.int32]  # of link i: the vertex it leaves
    target: NDArray[np.int32]
    kind: NDArray[np.int8]  # LinkKind
    rate: NDArray[np.int64]  # bytes per second: of a slow link what is left, of a lost one what it had
    latency: NDArray[np.int64]  # ns, of the cable and of what it ends at
    lost: NDArray[np.bool_]  # no path has such a link
    routes: Routes = field(repr=False)
    _paths: dict[tuple[int, int, int, int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def nodes(self) -> int:
        """How many nodes these GPUs take."""
        return -(-self.gpus // self.cluster.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """The node a rank is on."""
        return rank // self.cluster.gpus_per_node

    def domain_of(self, rank: int) -> int:
        """The ranks of one domain reach each other over GPU links: a node, or a rack of an NVL72."""
        return self.node_of(rank) // self.cluster.gpu_link_nodes

    def nics_of(self, rank: int) -> tuple[int, ...]:
        """The NICs nearest to a rank's GPU that work, as places in its node."""
        if not 0 <= rank < self.gpus:
            raise ValueError(f"there is no rank {rank}: this topology has GPUs 0 to {self.gpus - 1}")
        return tuple(self.routes.nics[rank, : self.routes.nic_counts[rank]].tolist())

    def path(
        self, source: int, target: int, *, source_nic: int | None = None, target_nic: int | None = None, flow: int = 0
    ) -> tuple[int, ...]:
        """The links from one rank's GPU to another's. Inside a domain GPU links only; between domains through a NIC of
        each side, the nearest unless given (of several nearest the one of the flow). Among equal paths a hash of the
        ends and of `flow` decides, as ECMP does.
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
        """`path` of many pairs at once: one row each, -1 after its end. What is given once is the same for all; a NIC
        of -1 is the nearest.
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
        """`paths` in parts, each of some of the pairs: which, and a row of links for each of them, with -1 anywhere. Of
        all parts that have a pair, the links of its rows are its path, in this order. Quicker than in one piece."""
        return find_path_parts(self.routes, *self._checked(source, target, source_nic, target_nic, flow))

    def _checked(self, *ends: ArrayLike) -> list[NDArray[np.int64]]:
        """Source, target, their NICs and the flow, as long as each other."""
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
        """ns from one end of a path to the other, of a byte that meets nobody."""
        return int(self.latency[list(path)].sum())

    def _check(self, ranks: NDArray[np.int64]) -> None:
        if ranks.size and (ranks.min() < 0 or ranks.max() >= self.gpus):
            wrong = int(ranks.min()) if ranks.min() < 0 else int(ranks.max())
            raise ValueError(f"there is no rank {wrong}: this topology has GPUs 0 to {self.gpus - 1}")
