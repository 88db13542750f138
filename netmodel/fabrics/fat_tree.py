"""Fat trees: leaves, spines and cores, and the rail-optimised tree, where NIC i of every node is plugged into leaf i.

In: the number of ports of a switch, levels and oversubscription. Out: the smallest tree of that shape that holds the
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netmodel.fabrics.base import Cable, Fabric, Switch, Wiring
from netmodel.keys import ClusterError

MAX_LEVELS = 3


@dataclass(frozen=True)
class FatTree(Fabric):
    """Switches of one radix in up to three levels; the NICs of a node share a leaf."""

    kind: ClassVar[str] = "fat-tree"
    rails: ClassVar[bool] = False
    radix: int
    levels: int  # 0: as few as hold the nodes
    oversubscription: tuple[float, ...]  # of leaves, then of spines; what is not given is 1

    def ratio(self, level: int) -> float:
        """Bandwidth below a switch of this level to bandwidth above it."""
        return self.oversubscription[level] if level < len(self.oversubscription) else 1.0

    def ports(self, level: int, down_rate: int) -> tuple[int, int]:
        """Of a switch that has a level above it: how many ports go down, how many up."""
        for down in range(self.radix - 1, 0, -1):
            up = -(-down * down_rate // round(self.rate * self.ratio(level)))
            if down + up <= self.radix:
                return down, up
        raise ClusterError(
            f"fabric.radix: {self.radix} ports are too few for oversubscription {self.ratio(level):g}; "
            "give switches more ports, or a higher oversubscription"
        )

    def summary(self) -> str:
        ratios = " and ".join(f"{ratio:g}:1" for ratio in self.oversubscription)
        return f"switches of {self.radix} ports, oversubscription {ratios}"

    def wire(self, nodes: int, nics: int, nic_rate: int) -> Wiring:
        fewest = 2 if self.rails else 1  # rails that never meet are asked for by levels = 1, not made by default
        for levels in (self.levels,) if self.levels else range(fewest, MAX_LEVELS + 1):
            down = self.radix if levels == 1 else self.ports(0, nic_rate)[0]
            attached, leaves = self._attach(nodes, nics, down)
            room = self._most_leaves(levels, nic_rate)
            if leaves <= room and (levels > 1 or leaves == 1 or self.rails):
                return self._wire(levels, leaves, attached, nic_rate)
        most = self._most_nodes(levels, nics, nic_rate)
        raise ClusterError(
            f"the {self.kind} of {levels} level{'s' * (levels > 1)} of {self.radix}-port switches has room for {most} "
            f"nodes of {nics} NICs; {nodes} are asked for; raise fabric.levels (up to {MAX_LEVELS}) or fabric.radix"
        )

    def _attach(self, nodes: int, nics: int, down: int) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int32]], int]:
        """[node, NIC] -> leaf, and how many leaves that makes."""
        node, nic = np.divmod(np.arange(nodes * nics), nics)
        if self.rails:
            leaf = node // down * nics + nic
        elif nics <= down:
            leaf = node // (down // nics)
        else:
            leaf = np.arange(nodes * nics) // down
        return leaf.astype(np.int32).reshape(nodes, nics), int(leaf.max()) + 1

    def _most_leaves(self, levels: int, nic_rate: int) -> int:
        if levels == 1:
            return self.radix if self.rails else 1
        if levels == 2:
            return self.radix
        return self.ports(1, self.rate)[0] * self.radix

    def _most_nodes(self, levels: int, nics: int, nic_rate: int) -> int:
        down = self.radix if levels == 1 else self.ports(0, nic_rate)[0]
        leaves = self._most_leaves(levels, nic_rate)
        if self.rails:
            return leaves // nics * down if levels > 1 else down
        return leaves * (down // nics) if nics <= down else leaves * down // nics

    def _wire(
        self, levels: int, leaves: int, attached: np.ndarray[tuple[int, int], np.dtype[np.int32]], nic_rate: int
    ) -> Wiring:
        switches = [Switch(f"leaf{leaf}", 0) for leaf in range(leaves)]
        cables: list[Cable] = []
        latency = self.link_latency

        def join(lower: int, upper: int, parallel: int) -> None:
            cables.extend([Cable(lower, upper, self.rate, latency)] * parallel)

        if levels == 2:
            _, up = self.ports(0, nic_rate)
            spines = _fewest(up, leaves, self.radix)
            switches += [Switch(f"spine{spine}", 1) for spine in range(spines)]
            for leaf in range(leaves):
                for spine in range(spines):
                    join(leaf, leaves + spine, up // spines)
        elif levels == 3:
            _, up = self.ports(0, nic_rate)
            pod_leaves, pod_up = self.ports(1, self.rate)
            pods = -(-leaves // pod_leaves)
            cores = _fewest(pod_up, pods, self.radix)
            spine_at = len(switches)
            switches += [Switch(f"spine{spine}", 1) for spine in range(pods * up)]
            core_at = len(switches)
            switches += [Switch(f"core{core}", 2) for core in range(up * cores)]
            for leaf in range(leaves):
                for spine in range(up):
                    join(leaf, spine_at + leaf // pod_leaves * up + spine, 1)
            for pod in range(pods):
                for spine in range(up):
                    for core in range(cores):
                        join(spine_at + pod * up + spine, core_at + spine * cores + core, pod_up // cores)
        return Wiring(tuple(switches), tuple(cables), attached)


@dataclass(frozen=True)
class RailOptimised(FatTree):
    """The tree of NVIDIA's SuperPODs: NIC i of the nodes of a group shares leaf i, so rails meet above leaves only."""

    kind: ClassVar[str] = "rail-optimised"
    rails: ClassVar[bool] = True


def _fewest(up: int, below: int, radix: int) -> int:
    """The fewest upper switches that take `up` cables of each of `below` switches, spread evenly."""
    for above in range(1, up + 1):
        if up % above == 0 and below * (up // above) <= radix:
            return above
    return up
