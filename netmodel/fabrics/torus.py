"""Tori and rings: every router is joined to its neighbours, one each way in every dimension.

In: the size of each dimension (of a ring: as many routers as the nodes need). Out: the whole torus, nodes placed row by
row. Two routers in a dimension are joined once, not twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from netmodel import keys
from netmodel.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.keys import ClusterError


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
                f"the torus of {' × '.join(map(str, sizes))} routers has room for {room} nodes; {nodes} are asked for; "
                "raise fabric.dimensions or fabric.nodes_per_router"
            )
        routers = np.arange(prod(sizes)).reshape(sizes)
        names = [".".join(map(str, place)) for place in np.ndindex(*sizes)]
        cables: list[Cable] = []
        for dimension, size in enumerate(sizes):
            following = np.roll(routers, -1, axis=dimension)
            for first, second in zip(routers.ravel().tolist(), following.ravel().tolist(), strict=True):
                if size > 2 or first < second:  # the way round two routers is the way between them
                    cables += [Cable(first, second, self.rate, self.link_latency)] * self.links
        attached = np.repeat(np.arange(nodes) // self.nodes_per_router, nics).reshape(nodes, nics)
        return Wiring(tuple(Switch(f"router{name}", 0) for name in names), tuple(cables), attached.astype(np.int32))

    def sizes(self, nodes: int) -> tuple[int, ...]:
        """Of each dimension, for so many nodes."""
        return self.dimensions


@dataclass(frozen=True)
class Ring(Torus):
    """A torus of one dimension, as long as the nodes need."""

    kind: ClassVar[str] = "ring"
    own_keys: ClassVar[keys.Keys] = {"nodes_per_router": keys.count, "links": keys.count}
    required: ClassVar[tuple[str, ...]] = ()

    def summary(self) -> str:
        return f"a ring of routers, {self.links} cable{'s' * (self.links > 1)} between neighbours"

    def sizes(self, nodes: int) -> tuple[int, ...]:
        return (-(-nodes // self.nodes_per_router),)
