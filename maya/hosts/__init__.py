"""Host costs: the CPU time of ops and calls on a training node, in files like `reference.toml`."""

from __future__ import annotations

from maya.hosts.costs import NO_COSTS, HostCosts, HostError, host_names, host_title, load_host

__all__ = ["NO_COSTS", "HostCosts", "HostError", "host_names", "host_title", "load_host"]
