"""The graph of a cluster: GPUs, NICs and switches, the links between them, and the paths of traffic.

build.py         a `Cluster` -> its `Topology`
topology.py      `Topology`
node.py          the wiring of GPUs, NICs and switches inside a node
links.py         the links as arrays; `LinkKind`
local_paths.py   paths inside a node
routing.py       paths across the network
route_tables.py  all paths of a topology
connectivity.py  checks that every GPU reaches every other
bisection.py     bandwidth between two halves of a cluster
"""

from netmodel.topology.build import build_topology
from netmodel.topology.topology import Topology

__all__ = ["Topology", "build_topology"]
