"""What all algorithms have in common: a draft of flows and latency, and how it becomes a `Plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster.parameters import Engine, Parameters
from netmodel.collectives.plan import Flow, LateFlows
from netmodel.topology import Topology
from netmodel.topology.links import LinkKind

# NCCL_BUFFSIZE: what a channel has under way at most.
BUFFER_BYTES = 4 * 2**20
# Of the norm by which stages of a pipeline add up: a ring over 8 H100 of each of 10 nodes, whose NVLinks and NICs are
# about equally fast, reaches 0.88 of what either would alone; far from balance the slower one counts.
COUPLING = 6.0
# Of PCIe packets: 256 bytes of payload with 24 to 28 of headers and checksums.
_PCIE_EFFICIENCY = 0.9


@dataclass(frozen=True)
class Draft:
    """What an algorithm makes of a group, before anything that is calibrated comes in."""

    flows: Sequence[Flow]
    gpu_steps: float  # one after the other
    network_steps: float
    path_ns: float  # of cables and switches along these steps
    proxy_steps: float = 0.0  # those of a ring that the CPU posts messages for
    fill_steps: float = 0.0  # of network_steps: those that wait for a whole piece of the step before
    fill_channels: int = 1  # among which the first pieces are divided
    local_share: float = 0.0  # of the data: what each member reads or writes without sending it
    lag_share: float = 1.0  # of the engine's lag
    limits: tuple[RateLimit, ...] = ()  # of every flow, where channels limit it
    link_loads: NDArray[np.float64] | None = None  # of all flows together, where that is known without adding them up


@dataclass(frozen=True)
class RateLimit:
    """How fast a flow's channels are: so many channels for a byte of the collective's size."""

    network: bool  # they cross the network
    channels: float


def wire_bytes(protocol: str) -> float:
    """Bytes on the wire per byte of data: LL sends a flag with every 4 bytes, LL128 one with every 120."""
    return {"ll": 2.0, "ll128": 128 / 120, "simple": 1.0}[protocol]


def efficiencies(topology: Topology, engine: Engine) -> NDArray[np.float64]:
    """By LinkKind."""
    by_kind = np.empty(len(LinkKind))
    by_kind[LinkKind.NVLINK] = engine.gpu_efficiency
    by_kind[LinkKind.PCIE] = engine.gpu_efficiency if topology.cluster.gpu_link == "pcie" else _PCIE_EFFICIENCY
    by_kind[LinkKind.NETWORK] = engine.network_efficiency
    return by_kind


def busiest(topology: Topology, draft: Draft) -> NDArray[np.float64]:
    """By LinkKind: ns that a byte of the collective keeps its busiest link busy, at the link's full rate."""
    loads = draft.link_loads
    if loads is None:
        loads = np.zeros(len(topology.rate))
        for flow in draft.flows:
            loads[flow.links] += flow.loads
    used = np.flatnonzero(loads)
    by_kind = np.zeros(len(LinkKind))
    np.maximum.at(by_kind, topology.kind[used], 1e9 * loads[used] / topology.rate[used])
    return by_kind


def coupling_ns_per_byte(busy: NDArray[np.float64]) -> float:
    """What a pipeline over GPU links and network loses because neither is always ready when the other is."""
    gpu, network = float(busy[LinkKind.NVLINK]), float(busy[LinkKind.NETWORK])
    if not gpu or not network:
        return 0.0
    return float((gpu**COUPLING + network**COUPLING) ** (1 / COUPLING)) - max(gpu, network)


def with_fewer_channels(draft: Draft, algorithm: str, operation: str, members: int, channels: int) -> Draft:
    """A draft whose flows share so few channels that these limit it."""
    data = 1.0 if algorithm != "ring" else (2.0 if operation == "all_reduce" else 1.0) * (members - 1) / members
    return replace(draft, limits=tuple(RateLimit(False, channels / data) for _ in draft.flows))


def channel_rates(draft: Draft, parameters: Parameters) -> list[float]:
    """What the channels of every flow reach; none where they do not limit them."""
    return [limit.channels * channel_rate(limit.network, parameters) for limit in draft.limits]


def limited(flows: Sequence[Flow], rates: Sequence[float]) -> Sequence[Flow]:
    """Flows that are no faster than these rates, if there are any."""
    if not rates:
        return flows
    if isinstance(flows, LateFlows):
        return LateFlows(len(flows), lambda: _limited(flows, rates))
    return _limited(flows, rates)


def _limited(flows: Sequence[Flow], rates: Sequence[float]) -> tuple[Flow, ...]:
    return tuple(replace(flow, limit=rate) for flow, rate in zip(flows, rates, strict=True))


def channel_rate(network: bool, parameters: Parameters) -> float:
    return parameters.network_channel_rate if network else parameters.gpu_channel_rate
