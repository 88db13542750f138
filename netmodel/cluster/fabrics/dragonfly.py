"""Dragonflies: all routers of a group are connected, and a few cables connect every two groups.

In: groups, routers per group, nodes per router. Out: the whole dragonfly; the cables that leave a group are assigned to
its routers in turn, so that the numbers of two routers differ by at most one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netmodel.cluster import keys
from netmodel.cluster.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.cluster.keys import ClusterError

# One global cable and two local ones cost less than two global cables, so no path passes through a third group.
_BETWEEN_GROUPS = 3


@dataclass(frozen=True)
class Dragonfly(Fabric):
    """The NICs of a node share its router. Paths are minimal: at most one cable between groups."""

    kind: ClassVar[str] = "dragonfly"
    own_keys: ClassVar[keys.Keys] = {
        "groups": keys.count,
        "routers_per_group": keys.count,
        "nodes_per_router": keys.count,
        "local_links": keys.count,
        "global_links": keys.count,
    }
    required: ClassVar[tuple[str, ...]] = ("groups", "routers_per_group", "nodes_per_router")
    groups: int = 1
    routers_per_group: int = 1
    nodes_per_router: int = 1
    local_links: int = 1  # parallel cables between two routers of a group
    global_links: int = 1  # cables between two groups

    def summary(self) -> str:
        cables = "cable" if self.global_links == 1 else "cables"
        return (
            f"{self.groups} groups of {self.routers_per_group} routers, {self.global_links} {cables} between two groups"
        )

    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        room = self.groups * self.routers_per_group * self.nodes_per_router
        if nodes > room:
            raise ClusterError(
                f"the dragonfly of {self.groups} × {self.routers_per_group} routers of {self.nodes_per_router} nodes "
                f"has room for {room} nodes; {nodes} were requested; raise fabric.groups, fabric.routers_per_group or "
                "fabric.nodes_per_router"
            )
        per_group = self.routers_per_group
        switches = [
            Switch(f"group{group}.router{router}", 0) for group in range(self.groups) for router in range(per_group)
        ]
        cables: list[Cable] = []
        for group in range(self.groups):
            for first in range(per_group):
                for second in range(first + 1, per_group):
                    cable = Cable(group * per_group + first, group * per_group + second, self.rate, self.link_latency)
                    cables += [cable] * self.local_links
        dealt = [0] * self.groups
        for first in range(self.groups):
            for second in range(first + 1, self.groups):
                for _ in range(self.global_links):
                    ends = [group * per_group + dealt[group] % per_group for group in (first, second)]
                    cables.append(Cable(ends[0], ends[1], self.rate, self.link_latency, _BETWEEN_GROUPS))
                    dealt[first] += 1
                    dealt[second] += 1
        attached = tuple((node // self.nodes_per_router,) * nics for node in range(nodes))
        return Wiring(tuple(switches), tuple(cables), attached)
