"""Fat trees of leaves, spines and cores; and the rail-optimised tree, where NIC i of every node is plugged into leaf i.

In: the number of ports of a switch, levels and oversubscription. Out: the smallest tree of that shape that holds the
nodes: as many leaves as they need, and the fewest upper switches that take all uplinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netmodel.cluster import keys
from netmodel.cluster.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.cluster.keys import ClusterError

MAX_LEVELS = 3


def _levels(value: object) -> int:
    levels = keys.count(value)
    if levels > MAX_LEVELS:
        raise ValueError(f"{levels} is too many; a tree has 1 (one switch) to {MAX_LEVELS} (leaf, spine, core)")
    return levels


def _radix(value: object) -> tuple[int, ...]:
    return tuple(keys.count(entry) for entry in value) if isinstance(value, list) and value else (keys.count(value),)


def _oversubscription(value: object) -> tuple[float, ...]:
    return tuple(keys.ratio(entry) for entry in value) if isinstance(value, list) else (keys.ratio(value),)


@dataclass(frozen=True)
class FatTree(Fabric):
    """Up to three levels of switches; the NICs of a node share a leaf."""

    kind: ClassVar[str] = "fat-tree"
    own_keys: ClassVar[keys.Keys] = {"radix": _radix, "levels": _levels, "oversubscription": _oversubscription}
    rails: ClassVar[bool] = False
    radix: tuple[int, ...] = (64,)  # ports of a leaf, spine, core; a missing one equals the level below
    levels: int = 0  # 0: the fewest that hold the nodes
    oversubscription: tuple[float, ...] = (1.0,)  # of leaves, then of spines; a missing one is 1

    def __post_init__(self) -> None:
        """Accept every kind of routing; the base class allows only some."""

    def summary(self) -> str:
        return f"switches of {', '.join(map(str, self.radix))} ports"

    def radix_of(self, level: int) -> int:
        """The number of ports of a switch of this level."""
        return self.radix[min(level, len(self.radix) - 1)]

    def ratio(self, level: int) -> float:
        """The ratio of the bandwidth below a switch of this level to that above it."""
        return self.oversubscription[level] if level < len(self.oversubscription) else 1.0

    def ports(self, level: int, down_rate: int) -> tuple[int, int]:
        """The numbers of ports down and up, of a switch that has a level above it."""
        radix = self.radix_of(level)
        for down in range(radix - 1, 0, -1):
            up = max(1, -(-down * down_rate // round(self.rate * self.ratio(level))))
            if down + up <= radix:
                return down, up
        raise ClusterError(
            f"fabric.radix: {radix} ports are too few for oversubscription {self.ratio(level):g}; "
            "give switches more ports, or a higher oversubscription"
        )

    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        fewest = 2 if self.rails else 1  # only an explicit levels = 1 makes rails that never meet
        for levels in (self.levels,) if self.levels else range(fewest, MAX_LEVELS + 1):
            if nodes <= self._room(levels, nics, nic_rate):
                attached, leaves = self._attach(nodes, nics, self._leaf_ports(levels, nic_rate)[0])
                switches, cables = self._tree(levels, leaves, nic_rate)
                return Wiring(tuple(switches), tuple(cables), attached)
        advice = ["fabric.radix"] if levels == MAX_LEVELS else [f"fabric.levels (up to {MAX_LEVELS})", "fabric.radix"]
        raise ClusterError(
            f"the {self.kind} fabric of {levels} level{'s' * (levels > 1)} and {self.summary()} has room for "
            f"{self._room(levels, nics, nic_rate)} nodes of {nics} NICs; {nodes} were requested; raise "
            f"{' or '.join(advice)}"
        )

    def _leaf_ports(self, levels: int, nic_rate: int) -> tuple[int, int]:
        return (self.radix_of(0), 0) if levels == 1 else self.ports(0, nic_rate)

    def _room(self, levels: int, nics: int, nic_rate: int) -> int:
        """The number of nodes that fit."""
        down, _ = self._leaf_ports(levels, nic_rate)
        if levels == 1:
            return down if self.rails else down // nics
        leaves = self.radix_of(1) if levels == 2 else self.ports(1, self.rate)[0] * self.radix_of(2)
        if self.rails:
            return leaves // nics * down
        return leaves * (down // nics) if nics <= down else leaves * down // nics

    def _attach(self, nodes: int, nics: int, down: int) -> tuple[tuple[tuple[int, ...], ...], int]:
        """[node][NIC] -> leaf, and the number of leaves."""

        def leaf(node: int, nic: int) -> int:
            if self.rails:
                return node // down * nics + nic
            return node // (down // nics) if nics <= down else (node * nics + nic) // down

        attached = tuple(tuple(leaf(node, nic) for nic in range(nics)) for node in range(nodes))
        return attached, attached[-1][-1] + 1

    def _tree(self, levels: int, leaves: int, nic_rate: int) -> tuple[list[Switch], list[Cable]]:
        switches = [Switch(f"leaf{leaf}", 0) for leaf in range(leaves)]
        cables: list[Cable] = []

        def join(lower: int, upper: int, parallel: int) -> None:
            cables.extend([Cable(lower, upper, self.rate, self.link_latency)] * parallel)

        _, up = self._leaf_ports(levels, nic_rate)
        if levels == 2:
            spines = _fewest(up, leaves, self.radix_of(1))
            switches += [Switch(f"spine{spine}", 1, "spines") for spine in range(spines)]
            for leaf in range(leaves):
                for spine in range(spines):
                    join(leaf, leaves + spine, up // spines)
        elif levels == 3:
            pod_leaves, pod_up = self.ports(1, self.rate)
            pods = -(-leaves // pod_leaves)
            cores = _fewest(pod_up, pods, self.radix_of(2))
            core_at = leaves + pods * up
            switches += [Switch(f"spine{spine}", 1, f"pod{spine // up}.spines") for spine in range(pods * up)]
            switches += [Switch(f"core{core}", 2, "cores") for core in range(up * cores)]
            for leaf in range(leaves):
                for spine in range(up):
                    join(leaf, leaves + leaf // pod_leaves * up + spine, 1)
            for pod in range(pods):
                for spine in range(up):
                    for core in range(cores):
                        join(leaves + pod * up + spine, core_at + spine * cores + core, pod_up // cores)
        return switches, cables


@dataclass(frozen=True)
class RailOptimised(FatTree):
    """The tree of NVIDIA's SuperPODs: NIC i of the nodes of a group shares leaf i, so rails meet above leaves only."""

    kind: ClassVar[str] = "rail-optimised"
    rails: ClassVar[bool] = True


def _fewest(up: int, below: int, radix: int) -> int:
    """The fewest upper switches that take the `up` cables of each of `below` switches, spread evenly over them."""
    return next(above for above in range(1, up + 1) if up % above == 0 and below * (up // above) <= radix)
