"""From a collective to a `Plan`: the links that its algorithm loads, and its costs besides the bytes.

In: a group of ranks on a `Topology`, an operation, an algorithm and a protocol. Out: a `Plan`, which the analytic and
the flow level evaluate. netmodel/collectives/tuner.py chooses the algorithm and protocol.
"""

from __future__ import annotations

import math

from netmodel.cluster.parameters import Parameters
from netmodel.collectives.algorithms.common import (
    BUFFER_BYTES,
    CollectiveSchedule,
    busiest,
    channel_rates,
    coupling_ns_per_byte,
    efficiencies,
    limited,
)
from netmodel.collectives.algorithms.group import RankGroup, make_group
from netmodel.collectives.algorithms.nvls import nvls_schedule
from netmodel.collectives.algorithms.p2p import p2p_schedule
from netmodel.collectives.algorithms.p2p_routes import RoutedTransfers, route_p2p
from netmodel.collectives.algorithms.ring import pat_schedule, ring_schedule
from netmodel.collectives.algorithms.tree import collnet_schedule, nvls_tree_schedule, tree_schedule
from netmodel.collectives.plan import Plan
from netmodel.topology import Topology

__all__ = [
    "CollectiveSchedule",
    "RankGroup",
    "RoutedTransfers",
    "collective_schedule",
    "hides_latency",
    "make_group",
    "make_plan",
    "p2p_schedule",
    "route_p2p",
]


def collective_schedule(
    group: RankGroup, operation: str, algorithm: str, protocol: str, root: int = 0
) -> CollectiveSchedule:
    """The schedule of one operation with one algorithm and protocol. `root`: the root rank of broadcast and reduce."""
    if algorithm == "ring":
        return ring_schedule(group, operation, protocol, root)
    if algorithm == "tree":
        return tree_schedule(group, protocol)
    if algorithm == "pat":
        return pat_schedule(group)
    if algorithm == "nvlstree":
        return nvls_tree_schedule(group)
    if algorithm == "nvls" and len(group.domains) == 1:
        return nvls_schedule(group, operation)
    return collnet_schedule(group, operation, chain=algorithm == "collnetchain", nvls=algorithm == "nvls")


def hides_latency(algorithm: str, protocol: str) -> bool:
    """Simple and LL128 keep several pieces in flight; LL waits at every step, and send/recv at its start."""
    return protocol != "ll" and algorithm != "p2p"


def make_plan(
    topology: Topology,
    parameters: Parameters,
    schedule: CollectiveSchedule,
    algorithm: str,
    protocol: str,
    channels: int,
) -> Plan:
    """The plan of a schedule, with the cluster's calibrated parameters."""
    engine = parameters.engine_for(algorithm, protocol)
    efficiency = efficiencies(topology, engine)
    rates = channel_rates(schedule, parameters)
    busy = busiest(topology, schedule) / efficiency
    slowest = float(busy.max())
    limit = min(rates, default=math.inf)
    latency = (
        schedule.gpu_steps * engine.gpu_step_ns + schedule.network_steps * engine.network_step_ns + schedule.path_ns
    )
    latency += schedule.proxy_steps * parameters.proxy_step_ns
    pipelined = hides_latency(algorithm, protocol)
    fill = parameters.tree_fill * schedule.fill_steps * 1e9 / (schedule.fill_channels * topology.cluster.nic_rate)
    local = parameters.local_step * schedule.local_share * 1e9 / topology.cluster.gpu_link_rate
    return Plan(
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        flows=limited(schedule.flows, rates),
        efficiency=efficiency,
        ns_per_byte=max(slowest, 1e9 / limit),
        fixed_ns=engine.launch_ns + (0.0 if pipelined else latency),
        hidden_ns=latency if pipelined else 0.0,
        lag=engine.lag * schedule.lag_share,
        fill_ns_per_byte=fill if pipelined else 0.0,
        fill_most=float(BUFFER_BYTES * schedule.fill_channels),
        local_ns_per_byte=local + (0.0 if algorithm == "p2p" else coupling_ns_per_byte(busy)),
    )
