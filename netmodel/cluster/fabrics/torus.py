"""Tori and rings: every router is connected to its two neighbours in every dimension.

In: the size of each dimension (a ring has as many routers as the nodes need). Out: the whole torus, nodes placed row by
row. A dimension of two routers has one connection, not two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import ClassVar

from netmodel.cluster import keys
from netmodel.cluster.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.cluster.keys import ClusterError


@dataclass(frozen=True)
class Torus(Fabric):
    """The NICs of a node share its router."""

    kind: ClassVar[str] = "torus"
    own_keys: ClassVar[keys.Keys] = {
        "dimensions": keys.list_of(keys.count, "sizes, e.g. [4, 4, 8]"),
        "nodes_per_router": keys.count,
        "links": keys.count,
    }
    required: ClassVar[tuple[str, ...]] = ("dimensions",)
    dimensions: tuple[int, ...] = ()
    nodes_per_router: int = 1
    links: int = 1  # parallel cables between two neighbours

    def summary(self) -> str:
        sizes = " × ".join(map(str, self.dimensions))
        return f"{sizes} routers, {self.links} cable{'s' * (self.links > 1)} between neighbours"

    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        sizes = self.sizes(nodes)
        room = prod(sizes) * self.nodes_per_router
        if nodes > room:
            raise ClusterError(
                f"the torus of {' × '.join(map(str, sizes))} routers has room for {room} nodes; {nodes} were "
                "requested; raise fabric.dimensions or fabric.nodes_per_router"
            )
        places = list(product(*map(range, sizes)))
        number = {place: router for router, place in enumerate(places)}
        cables: list[Cable] = []
        for dimension, size in enumerate(sizes):
            for first, place in enumerate(places):
                neighbour = (*place[:dimension], (place[dimension] + 1) % size, *place[dimension + 1 :])
                second = number[neighbour]
                if size > 2 or first < second:  # in a dimension of two, both neighbours are the same router
                    cables += [Cable(first, second, self.rate, self.link_latency)] * self.links
        switches = tuple(Switch("router" + ".".join(map(str, place)), 0) for place in places)
        attached = tuple((node // self.nodes_per_router,) * nics for node in range(nodes))
        return Wiring(switches, tuple(cables), attached)

    def sizes(self, nodes: int) -> tuple[int, ...]:
        """The size of each dimension, for this number of nodes."""
        return self.dimensions


@dataclass(frozen=True)
class Ring(Torus):
    """A torus of one dimension, sized for the nodes."""

    kind: ClassVar[str] = "ring"
    own_keys: ClassVar[keys.Keys] = {"nodes_per_router": keys.count, "links": keys.count}
    required: ClassVar[tuple[str, ...]] = ()

    def summary(self) -> str:
        return f"a ring of routers, {self.links} cable{'s' * (self.links > 1)} between neighbours"

    def sizes(self, nodes: int) -> tuple[int, ...]:
        return (-(-nodes // self.nodes_per_router),)
