"""What all algorithms have in common: a draft of flows and latency, and how it becomes a `Plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.link_kind import LinkKind
from netmodel.parameters import Engine
from netmodel.plan import Flow, Plan
from netmodel.topology import Topology

# Of PCIe packets: 256 bytes of payload with 24 to 28 of headers and checksums.
_PCIE_EFFICIENCY = 0.9


@dataclass(frozen=True)
class Draft:
    """What an algorithm makes of a group: flows, and latency beyond the launch."""

    flows: tuple[Flow, ...]
    latency_ns: float
    local_share: float = 0.0  # of the data: what each member reads or writes without sending it


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


def transfer_ns_per_byte(topology: Topology, flows: Sequence[Flow], efficiency: NDArray[np.float64]) -> float:
    """What a byte takes on free links: on the busiest link, or where channels limit a flow."""
    if not flows:
        return 0.0
    loads = np.zeros(len(topology.rate))
    for flow in flows:
        loads[flow.links] += flow.loads
    used = np.flatnonzero(loads)
    rates = topology.rate[used] * efficiency[topology.kind[used]]
    slowest = float((loads[used] / rates).max(initial=0.0))
    return 1e9 * max(slowest, max(1 / flow.limit for flow in flows))
