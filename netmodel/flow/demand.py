"""The bandwidth that one plan needs on every link, and its weight against other plans.

In: a `Plan` and the topology's links. Out: a `Demand`: the plan's flows as a table over the links it uses, and their
weight against those of other plans.

Three modelling decisions:

Efficiency. A protocol that reaches 80 % of a link occupies the whole link meanwhile: flags, headers and gaps are on the
wire as well. A flow therefore takes load / efficiency of a link's capacity. A plan alone gets rate x efficiency, two
plans that share a link get half of that each, and neither uses the bandwidth that the other's protocol wastes.

Weights inside a plan. Where flows of a plan share a link, each progresses in proportion to its load there: NCCL divides
a collective so that its parts end at the same time. A plan alone therefore ends when its busiest link has finished, as
the analytic level assumes.

Weights between plans. NICs and switches serve connections in turn, and a GPU keeps as many connections busy as its
collective has channels. Where two plans share the busiest link that leaves a GPU, they share it in proportion to their
channels; further out, each counts with the channels that its GPUs bring: 16 channels through 8 NICs are 2 per NIC.
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

    links: NDArray[np.int64]  # the links that the plan uses, ascending
    table: FlowTable  # the capacity taken per unit of fair rate
    weight: float  # bytes of the collective per unit of fair rate


@dataclass(frozen=True)
class Links:
    """The properties of a topology's links that demands need."""

    bytes_per_ns: NDArray[np.float64]
    kind: NDArray[np.int8]
    leaves_gpu: NDArray[np.bool_]

    @classmethod
    def of(cls, topology: Topology) -> Links:
        """The links of one topology."""
        is_gpu = np.array([vertex.kind == "gpu" for vertex in topology.vertices], bool)
        return cls(topology.rate / 1e9, topology.kind, is_gpu[topology.source])


def demand_of(plan: Plan, links: Links) -> Demand:
    """The demand of a plan. A plan without flows has no links, and its bytes take no time."""
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
    """Distinct flows and their counts: flows with the same links and loads are merged, flows without links dropped."""
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
