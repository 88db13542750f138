"""What a timeline depends on besides the traces: the host's costs, and where and how the job ran.

In: `run.json` in a run's folder, written when the job starts. Out: `RunSettings`. A run is replayed on other settings
by replacing fields of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maya.trace import Kind


@dataclass(frozen=True)
class HostCosts:
    """What the CPU of a training node spends, in ns; `overlap` is per mille."""

    op: int  # of an ATen op, with the Python around it
    latency: int  # from a launch on the host to its start on an idle device
    wake: int  # until a host thread goes on that waited for the device
    clock_read: int
    calls: Mapping[Kind, int] = field(default_factory=dict)  # of a call of the kind; absent: nothing
    overlap: int = 0  # how much longer work takes on the device while a collective runs beside it


NO_COSTS = HostCosts(op=0, latency=0, wake=0, clock_read=0)


@dataclass(frozen=True)
class RunSettings:
    """Where and how a job ran."""

    world_size: int
    ranks_per_node: int
    gpu: str  # name or file of a device
    cluster: str  # name or file of a cluster
    host: HostCosts
    network: str = "analytic"  # or "flow"
    nccl: Mapping[str, str] = field(default_factory=dict)  # NCCL_* variables that decide about algorithms
