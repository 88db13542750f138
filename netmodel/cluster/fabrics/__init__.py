"""The networks that join nodes: one module per kind, each turns a number of nodes into switches and cables.

In: `[fabric]` of a cluster's file. Out: a `Fabric` of the kind it names.
"""

from __future__ import annotations

from typing import Any

from netmodel.cluster import keys
from netmodel.cluster.fabrics.base import ROUTINGS, Cable, Fabric, Switch, Wiring
from netmodel.cluster.fabrics.dragonfly import Dragonfly
from netmodel.cluster.fabrics.fat_tree import FatTree, RailOptimised
from netmodel.cluster.fabrics.graph import Graph
from netmodel.cluster.fabrics.torus import Ring, Torus
from netmodel.cluster.keys import ClusterError

__all__ = ["KINDS", "Cable", "Fabric", "FatTree", "Switch", "Wiring", "read_fabric"]

KINDS: dict[str, type[Fabric]] = {
    fabric.kind: fabric for fabric in (FatTree, RailOptimised, Dragonfly, Torus, Ring, Graph)
}
_COMMON: keys.Keys = {
    "kind": keys.one_of(tuple(KINDS), "a kind of fabric"),
    "rate": keys.rate,
    "link_latency": keys.duration,
    "switch_latency": keys.duration,
    "routing": keys.one_of(ROUTINGS, "a way of routing"),
    "sharp": keys.boolean,
    "connections": keys.count,
}


def read_fabric(where: str, table: object, nic_rate: int) -> Fabric:
    """The fabric of a file; without a table a fat tree that is nowhere narrower than the NICs."""
    name = table.get("kind", FatTree.kind) if isinstance(table, dict) else FatTree.kind
    kind = KINDS.get(name, FatTree) if isinstance(name, str) else FatTree
    if isinstance(table, dict):
        for key in table:
            owners = [other.kind for other in KINDS.values() if key in other.own_keys]
            if owners and key not in kind.own_keys:
                raise ClusterError(
                    f'{where}: "fabric.{key}" is a key of {" and ".join(owners)}, but fabric.kind is {name}'
                )
    values: dict[str, Any] = keys.read_keys(where, "fabric.", table, {**_COMMON, **kind.own_keys}, kind.required)
    values.pop("kind", None)
    defaults: dict[str, Any] = {
        "rate": nic_rate,
        "link_latency": 100,
        "switch_latency": 300,
        "routing": "ecmp",
        "sharp": False,
    }
    try:
        return kind(**(defaults | values))
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from error
