"""The graph of a cluster: GPUs, NICs and switches, the links between them, and the paths that traffic takes.

build.py         a `Cluster` -> its `Topology`
topology.py      `Topology`
node.py          how GPUs, NICs and switches are wired inside a node
links.py         the links as arrays
link_kind.py     what a link is: NVLink, PCIe, network …
local_paths.py   paths inside a node
routing.py       paths across the network
route_tables.py  all paths of a topology
reach.py         whether every GPU reaches every other
bisection.py     bandwidth between two halves of a cluster
"""

from netmodel.topology.build import build_topology
from netmodel.topology.topology import Topology

__all__ = ["Topology", "build_topology"]
