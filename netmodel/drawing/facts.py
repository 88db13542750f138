"""The figures in drawings: the levels of a fabric, its rates, the distances between its ends.

In: a cluster, its wiring and its topology. Out: lines of text and numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from maya.util.text import rate_text, time_text
from netmodel.cluster import Cluster
from netmodel.cluster.fabrics import FatTree, Wiring
from netmodel.topology import Topology
from netmodel.topology.bisection import bisection_rate

LEVEL_NAMES = ("leaf", "spine", "core")


@dataclass(frozen=True)
class Level:
    """The switches of one level and the cables that leave them upwards."""

    name: str
    switches: int
    cables_up: int
    cable_rates: tuple[int, ...]
    rate_down: int
    rate_up: int
    cables_inside: int  # between switches of this level

    @property
    def oversubscription(self) -> str:
        if not self.rate_up:
            return ""
        ratio = self.rate_down / self.rate_up
        return f"{ratio:.3g}:1"


def levels(cluster: Cluster, wiring: Wiring) -> list[Level]:
    """The levels of switches, from the one that nodes are plugged into upwards."""
    level_of = [switch.level for switch in wiring.switches]
    found = []
    rate_down = cluster.nic_rate * wiring.ports
    for level in range(max(level_of) + 1):
        up = [cable for cable in wiring.cables if sorted((level_of[cable.lower], level_of[cable.upper]))[0] == level]
        inside = [cable for cable in up if level_of[cable.lower] == level_of[cable.upper]]
        up = [cable for cable in up if level_of[cable.lower] != level_of[cable.upper]]
        if isinstance(cluster.fabric, FatTree):
            name = LEVEL_NAMES[level]
        else:
            name = "router" if cluster.fabric.kind != "graph" else f"level {level}"
        rates = tuple(sorted({cable.rate for cable in up + inside}))
        rate_up = sum(cable.rate for cable in up)
        found.append(Level(name, level_of.count(level), len(up), rates, rate_down, rate_up, len(inside)))
        rate_down = rate_up
    return found


def gpu_link(cluster: Cluster) -> str:
    """A short description of the links between GPUs."""
    generation = f" {cluster.gpu_link_generation}" if cluster.gpu_link_generation else ""
    kind = f"PCIe{generation}" if cluster.gpu_link == "pcie" else f"NVLink{generation}"
    switch = {"nvswitch": " over NVSwitch", "nvlink-mesh": " mesh", "pcie": ""}[cluster.gpu_link]
    latency = cluster.pcie_latency if cluster.gpu_link == "pcie" else cluster.gpu_link_latency
    return f"{kind}{switch}, {rate_text(cluster.gpu_link_rate)} per GPU each way, {time_text(latency)} a hop"


def routing(cluster: Cluster) -> str:
    """A short description of the routing."""
    words = {
        "ecmp": "ECMP (a hash of both ends chooses among equal paths)",
        "d-mod-k": "static routes by destination (d-mod-k)",
        "adaptive": "adaptive routing (packets spread over all equal paths)",
    }
    return words[cluster.fabric.routing]


def attachment(cluster: Cluster, wiring: Wiring) -> str:
    """A short description of the switches that NICs are plugged into."""
    per_switch = Counter(switch for row in wiring.attached for switch in row)
    most = max(per_switch.values())
    if isinstance(cluster.fabric, FatTree) and cluster.fabric.rails:
        return f"NIC i of up to {most} nodes in leaf i of their group"
    same = all(len(set(row)) == 1 for row in wiring.attached)
    return f"up to {most} in a switch" + (
        ", all NICs of a node in the same" if same and cluster.nics_per_node > 1 else ""
    )


def distances(topology: Topology) -> list[str]:
    """Distances between GPUs: neighbours, within the domain, and at the far end of the cluster."""
    lines = []
    per_node, last = topology.cluster.gpus_per_node, topology.gpus - 1
    if last >= 1:
        ends = [(0, min(last, per_node - 1), "in a node")]
        if last >= per_node:
            ends.append((0, per_node, "to the next node"))
        if last >= 2 * per_node:
            ends.append((0, last, "to the last GPU"))
        for source, target, where in ends:
            path = topology.path(source, target)
            stations = [topology.vertices[topology.target[link]].name for link in path]
            latency = time_text(topology.path_latency(path))
            narrowest = rate_text(int(topology.rate[list(path)].min()))
            lines.append(
                f"{where:<17}{latency:>8}, {narrowest:>10}: {topology.vertices[source].name} {' '.join(stations)}"
            )
    return lines


def bisection(topology: Topology) -> str:
    """The bisection bandwidth as text; empty where there is nothing to bisect."""
    rates = bisection_rate(topology)
    if rates is None:
        return ""
    carried, able = rates
    share = carried / able if able else 0.0
    return f"{rate_text(carried)} each way between the halves of the cluster, {share:.0%} of what their NICs could send"
