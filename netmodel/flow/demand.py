"""What one plan asks of the links, in the form in which plans are weighed against each other.

In: a `Plan` and the topology's links. Out: a `Demand`: the plan's flows as a table over the links it uses, and how much
they weigh against those of other plans.

Three decisions are made here.

Efficiency. A protocol that reaches 80 % of a link takes all of that link while it does so: flags, headers and gaps are
on the wire as well. A flow therefore takes load / efficiency of a link's capacity. So a plan alone gets rate x
efficiency, two plans that share a link get half of that each, and nobody uses what the other's protocol wastes.

Weights inside a plan. All flows of a plan progress alike where they share a link, each in proportion to what it has to
move there: parts of one collective are cut such that they should end together. It follows that a plan alone ends when
its busiest link is through, which is what the analytic level says.

Weights between plans. NICs and switches serve connections in turn, and a GPU keeps as many connections busy as its
collective has channels. So where two plans meet on the busiest link that leaves a GPU, they share it as their channels;
further out each counts with what its GPUs bring: of 16 channels that leave a node through 8 NICs, 2 to a NIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.plan import Flow, Plan
from netmodel.flow.fair_share import FlowTable
from netmodel.topology import Topology


@dataclass(frozen=True)
class Demand:
    """A plan's flows, merged where they take the same links."""

    links: NDArray[np.int64]  # that the plan uses, ascending
    table: FlowTable  # the capacity taken per unit of fair rate
    weight: float  # bytes of the collective per unit of fair rate


@dataclass(frozen=True)
class Links:
    """Of a topology, what demands need."""

    bytes_per_ns: NDArray[np.float64]
    kind: NDArray[np.int8]
    leaves_gpu: NDArray[np.bool_]

    @classmethod
    def of(cls, topology: Topology) -> Links:
        """The links of one topology."""
        is_gpu = np.array([vertex.kind == "gpu" for vertex in topology.vertices], bool)
        return cls(topology.rate / 1e9, topology.kind, is_gpu[topology.source])


def demand_of(plan: Plan, links: Links) -> Demand:
    """Of a plan whose flows may be none: then it has no links, and a byte costs nothing."""
    merged, counts = _merge(plan.flows)
    if not merged:
        nothing = np.zeros(0, np.int64)
        return Demand(nothing, FlowTable(np.zeros(1, np.int64), nothing, np.zeros(0), np.zeros(0)), 1.0)
    lengths = np.array([len(flow.links) for flow in merged])
    offsets = np.zeros(len(merged) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    entries = np.concatenate([flow.links for flow in merged]).astype(np.int64)
    single = np.concatenate([flow.loads for flow in merged]) / plan.efficiency[links.kind[entries]]
    copies = np.repeat(counts, lengths)
    used = np.flatnonzero(np.bincount(entries))
    place = np.zeros(used[-1] + 1, np.int64)
    place[used] = np.arange(len(used))
    places = place[entries]
    taken = np.bincount(places, single * copies)
    out = links.leaves_gpu[used]
    weight = plan.channels / (taken[out] if out.any() else taken).max()
    limits = np.array([flow.limit for flow in merged]) / (1e9 * weight)
    return Demand(used, FlowTable(offsets, entries, single * copies * weight, limits), float(weight))


def _merge(flows: Sequence[Flow]) -> tuple[list[Flow], NDArray[np.int64]]:
    """Flows that take the same links alike, once each, and how often. Those that take none need no time."""
    counts: dict[tuple[bytes, bytes, float], int] = {}
    first: list[Flow] = []
    for flow in flows:
        if not len(flow.links):
            continue
        key = (flow.links.tobytes(), flow.loads.tobytes(), flow.limit)
        if key not in counts:
            first.append(flow)
        counts[key] = counts.get(key, 0) + 1
    return first, np.array(list(counts.values()), np.int64)
