"""The parts that all algorithms share: `CollectiveSchedule`, and the helpers that turn one into a `Plan`.

In: the flows and steps of an algorithm. Out: its load on the links and its rate limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster.parameters import Engine, Parameters
from netmodel.collectives.plan import Flow, LateFlows
from netmodel.topology import Topology
from netmodel.topology.links import LinkKind

# NCCL_BUFFSIZE: the most bytes that a channel has in flight.
BUFFER_BYTES = 4 * 2**20
# Exponent of the norm that adds up the stages of a pipeline. A ring over 10 nodes of 8 H100, whose NVLinks and NICs are
# about equally fast, reaches 0.88 of the rate of either alone; far from balance only the slower stage counts.
COUPLING = 6.0
# PCIe packets carry 256 bytes of payload and 24 to 28 bytes of headers and checksums.
_PCIE_EFFICIENCY = 0.9


@dataclass(frozen=True)
class CollectiveSchedule:
    """The flows and steps of one algorithm in one group, before calibrated parameters apply."""

    flows: Sequence[Flow]
    gpu_steps: float  # sequential steps over GPU links
    network_steps: float  # sequential steps over the network
    path_ns: float  # latency of cables and switches along these steps
    proxy_steps: float = 0.0  # steps of a ring for which NCCL's CPU proxy posts sends
    fill_steps: float = 0.0  # the part of network_steps that waits for a whole piece of the step before
    fill_channels: int = 1  # channels that share the first pieces
    local_share: float = 0.0  # share of the data that each member reads or writes without sending it
    lag_share: float = 1.0  # share of the engine's lag
    limits: tuple[RateLimit, ...] = ()  # one per flow, where channels limit the rate
    link_loads: NDArray[np.float64] | None = None  # sum over all flows, where it is known without adding them up


@dataclass(frozen=True)
class RateLimit:
    """The rate limit of a flow: its channels, per byte of the collective's size."""

    network: bool  # the channels cross the network
    channels: float


def wire_bytes(protocol: str) -> float:
    """Bytes on the wire per byte of data: LL sends a flag with every 4 bytes, LL128 one with every 120."""
    return {"ll": 2.0, "ll128": 128 / 120, "simple": 1.0}[protocol]


def efficiencies(topology: Topology, engine: Engine) -> NDArray[np.float64]:
    """The share of a link's rate that the engine reaches, indexed by LinkKind."""
    by_kind = np.empty(len(LinkKind))
    by_kind[LinkKind.NVLINK] = engine.gpu_efficiency
    by_kind[LinkKind.PCIE] = engine.gpu_efficiency if topology.cluster.gpu_link == "pcie" else _PCIE_EFFICIENCY
    by_kind[LinkKind.NETWORK] = engine.network_efficiency
    return by_kind


def busiest(topology: Topology, schedule: CollectiveSchedule) -> NDArray[np.float64]:
    """Indexed by LinkKind: ns per byte of the collective on the busiest link, at the link's full rate."""
    used, loads = _loaded_links(schedule)
    by_kind = np.zeros(len(LinkKind))
    np.maximum.at(by_kind, topology.kind[used], 1e9 * loads / topology.rate[used])
    return by_kind


def _loaded_links(schedule: CollectiveSchedule) -> tuple[NDArray[np.integer[Any]], NDArray[np.float64]]:
    """The links that a schedule uses, and their loads."""
    if schedule.link_loads is not None:
        used = np.flatnonzero(schedule.link_loads)
        return used, schedule.link_loads[used]
    if len(schedule.flows) == 1:
        return schedule.flows[0].links, schedule.flows[0].loads
    if not schedule.flows:
        return np.zeros(0, np.intp), np.zeros(0)
    links, which = np.unique(np.concatenate([flow.links for flow in schedule.flows]), return_inverse=True)
    return links, np.bincount(which.reshape(-1), np.concatenate([flow.loads for flow in schedule.flows]))


def coupling_ns_per_byte(busy: NDArray[np.float64]) -> float:
    """The loss of a pipeline over GPU links and network, because each sometimes waits for the other."""
    gpu, network = float(busy[LinkKind.NVLINK]), float(busy[LinkKind.NETWORK])
    if not gpu or not network:
        return 0.0
    return float((gpu**COUPLING + network**COUPLING) ** (1 / COUPLING)) - max(gpu, network)


def with_fewer_channels(
    schedule: CollectiveSchedule, algorithm: str, operation: str, members: int, channels: int
) -> CollectiveSchedule:
    """A schedule whose flows share so few channels that the channels limit the rate."""
    data = 1.0 if algorithm != "ring" else (2.0 if operation == "all_reduce" else 1.0) * (members - 1) / members
    return replace(schedule, limits=tuple(RateLimit(False, channels / data) for _ in schedule.flows))


def channel_rates(schedule: CollectiveSchedule, parameters: Parameters) -> list[float]:
    """The rate limit of every flow; empty where channels do not limit the rate."""
    return [limit.channels * channel_rate(limit.network, parameters) for limit in schedule.limits]


def limited(flows: Sequence[Flow], rates: Sequence[float]) -> Sequence[Flow]:
    """The flows with these rate limits, if there are any."""
    if not rates:
        return flows
    if isinstance(flows, LateFlows):
        return LateFlows(len(flows), lambda: _limited(flows, rates))
    return _limited(flows, rates)


def _limited(flows: Sequence[Flow], rates: Sequence[float]) -> tuple[Flow, ...]:
    return tuple(replace(flow, limit=rate) for flow, rate in zip(flows, rates, strict=True))


def channel_rate(network: bool, parameters: Parameters) -> float:
    return parameters.network_channel_rate if network else parameters.gpu_channel_rate
