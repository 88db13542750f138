"""What the CPU of a training node spends: costs of ops and calls, in files like `reference.toml`."""

from __future__ import annotations

from maya.hosts.costs import NO_COSTS, HostCosts, HostError, host_names, host_title, load_host

__all__ = ["NO_COSTS", "HostCosts", "HostError", "host_names", "host_title", "load_host"]
