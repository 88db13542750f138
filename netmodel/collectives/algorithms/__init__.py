"""From a collective to a `Plan`: which links its algorithm loads, and what it costs besides.

In: a group of ranks on a `Topology`, an operation, an algorithm and a protocol. Out: a `Plan`, which both levels of
detail evaluate. Which algorithm and protocol NCCL would choose is the tuner's question (netmodel/collectives/tuner.py).
"""

from __future__ import annotations

import math

from netmodel.cluster.parameters import Parameters
from netmodel.collectives.algorithms.common import (
    BUFFER_BYTES,
    Draft,
    busiest,
    channel_rates,
    coupling_ns_per_byte,
    efficiencies,
    limited,
)
from netmodel.collectives.algorithms.group import RankGroup, make_group
from netmodel.collectives.algorithms.nvls import draft_nvls
from netmodel.collectives.algorithms.p2p import draft_messages
from netmodel.collectives.algorithms.p2p_routes import Routed, route_messages
from netmodel.collectives.algorithms.ring import draft_pat, draft_ring
from netmodel.collectives.algorithms.tree import draft_collnet, draft_nvls_tree, draft_tree
from netmodel.collectives.plan import Plan
from netmodel.topology import Topology

__all__ = [
    "Draft",
    "RankGroup",
    "Routed",
    "draft_collective",
    "draft_messages",
    "hides_latency",
    "make_group",
    "make_plan",
    "route_messages",
]


def draft_collective(group: RankGroup, operation: str, algorithm: str, protocol: str, root: int = 0) -> Draft:
    """One operation with one algorithm and protocol. `root` is a rank, of broadcast and reduce."""
    if algorithm == "ring":
        return draft_ring(group, operation, protocol, root)
    if algorithm == "tree":
        return draft_tree(group, protocol)
    if algorithm == "pat":
        return draft_pat(group)
    if algorithm == "nvlstree":
        return draft_nvls_tree(group)
    if algorithm == "nvls" and len(group.domains) == 1:
        return draft_nvls(group, operation)
    return draft_collnet(group, operation, chain=algorithm == "collnetchain", nvls=algorithm == "nvls")


def hides_latency(algorithm: str, protocol: str) -> bool:
    """Simple and LL128 have several pieces under way; LL waits at every step, and messages at their start."""
    return protocol != "ll" and algorithm != "p2p"


def make_plan(
    topology: Topology, parameters: Parameters, draft: Draft, algorithm: str, protocol: str, channels: int
) -> Plan:
    """A draft with what is calibrated."""
    engine = parameters.engine_for(algorithm, protocol)
    efficiency = efficiencies(topology, engine)
    rates = channel_rates(draft, parameters)
    busy = busiest(topology, draft) / efficiency
    slowest = float(busy.max())
    limit = min(rates, default=math.inf)
    latency = draft.gpu_steps * engine.gpu_step_ns + draft.network_steps * engine.network_step_ns + draft.path_ns
    latency += draft.proxy_steps * parameters.proxy_step_ns
    pipelined = hides_latency(algorithm, protocol)
    fill = parameters.tree_fill * draft.fill_steps * 1e9 / (draft.fill_channels * topology.cluster.nic_rate)
    local = parameters.local_step * draft.local_share * 1e9 / topology.cluster.gpu_link_rate
    return Plan(
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        flows=limited(draft.flows, rates),
        efficiency=efficiency,
        ns_per_byte=max(slowest, 1e9 / limit),
        fixed_ns=engine.launch_ns + (0.0 if pipelined else latency),
        hidden_ns=latency if pipelined else 0.0,
        lag=engine.lag * draft.lag_share,
        fill_ns_per_byte=fill if pipelined else 0.0,
        fill_most=float(BUFFER_BYTES * draft.fill_channels),
        local_ns_per_byte=local + (0.0 if algorithm == "p2p" else coupling_ns_per_byte(busy)),
    )
