"""The busiest links of a simulation.

In: the collectives that ended on a `FlowNetwork`. Out: the links with the highest utilisation in that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netmodel.flow.network import Finished
from netmodel.topology import Topology


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link."""

    source: str
    target: str
    bytes: int
    share: float  # utilisation, from the first start to the last end


def busiest_links(topology: Topology, finished: Sequence[Finished], count: int = 1) -> list[LinkUse]:
    """Links by descending utilisation, then by number."""
    moved = np.zeros(len(topology.rate))
    for one in finished:
        for flow in one.plan.flows:
            moved[flow.links] += flow.loads * one.collective.size
    if not moved.any():
        return []
    ns = max(one.end_ns for one in finished) - min(one.start_ns for one in finished)
    share = np.round(moved / (topology.rate * (ns / 1e9)), 6)
    chosen = np.argsort(-share, kind="stable")[:count]
    names = [vertex.name for vertex in topology.vertices]
    return [
        LinkUse(names[topology.source[i]], names[topology.target[i]], round(float(moved[i])), float(share[i]))
        for i in chosen
        if moved[i]
    ]
