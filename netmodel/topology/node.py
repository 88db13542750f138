"""The wiring inside one node: GPUs, NVLink or PCIe between them, PCIe switches, CPU sockets and NICs.

In: a `Cluster`. Out: `NodeWiring`, the same for every node, with vertices numbered inside the node. `NVSWITCH` stands
for the switch of a domain, which may span several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from netmodel.cluster import Cluster
from netmodel.topology.links import LinkKind

NVSWITCH = -1


@dataclass(frozen=True)
class Wire:
    """A connection between two vertices of a node; both directions."""

    first: int
    second: int
    kind: LinkKind
    rate: int
    latency: int


@dataclass(frozen=True)
class NodeWiring:
    """Vertices in this order: GPUs, NICs, PCIe switches, CPU sockets."""

    vertices: tuple[tuple[str, str], ...]  # kind and name
    wires: tuple[Wire, ...]


def wire_node(cluster: Cluster) -> NodeWiring:
    """The wiring of a cluster's nodes."""
    gpus, nics, switches, sockets = cluster.gpus_per_node, cluster.nics_per_node, cluster.pcie_switches, cluster.sockets
    nic_at, pcie_at = gpus, gpus + nics
    host_at = pcie_at + switches
    vertices = [("gpu", f"gpu{gpu}") for gpu in range(gpus)]
    vertices += [("nic", f"nic{nic}") for nic in range(nics)]
    vertices += [("pcie", f"pcie{switch}") for switch in range(switches)]
    vertices += [("host", f"cpu{socket}") for socket in range(sockets)]

    wires: list[Wire] = []
    if cluster.gpu_link == "nvswitch":
        for gpu in range(gpus):
            wires.append(Wire(gpu, NVSWITCH, LinkKind.NVLINK, cluster.gpu_link_rate, cluster.gpu_link_latency))
    elif cluster.gpu_link == "nvlink-mesh":
        busiest = max(sum(links for *ends, links in cluster.gpu_link_mesh if gpu in ends) for gpu in range(gpus))
        for first, second, links in cluster.gpu_link_mesh:
            rate = cluster.gpu_link_rate * links // busiest
            wires.append(Wire(first, second, LinkKind.NVLINK, rate, cluster.gpu_link_latency))

    def pcie(first: int, second: int, rate: int = cluster.pcie_rate) -> None:
        wires.append(Wire(first, second, LinkKind.PCIE, rate, cluster.pcie_latency))

    for gpu in range(gpus):
        pcie(gpu, _parent(cluster, (gpu,), pcie_at, host_at))
    for nic in range(nics):
        pcie(nic_at + nic, _parent(cluster, cluster.nic_affinity[nic], pcie_at, host_at), cluster.nic_pcie_rate)
    for switch in range(switches):
        pcie(pcie_at + switch, host_at + switch * sockets // switches)
    for socket in range(sockets):
        for other in range(socket + 1, sockets):
            rate, latency = cluster.host_link_rate, cluster.host_link_latency
            wires.append(Wire(host_at + socket, host_at + other, LinkKind.PCIE, rate, latency))
    return NodeWiring(tuple(vertices), tuple(wires))


def _parent(cluster: Cluster, gpus: tuple[int, ...], pcie_at: int, host_at: int) -> int:
    """The lowest vertex above all of these GPUs: a PCIe switch, else the socket of the first."""
    places = {gpu * cluster.pcie_switches // cluster.gpus_per_node for gpu in gpus}
    if cluster.pcie_switches and len(places) == 1:
        return pcie_at + places.pop()
    return host_at + min(gpus) * cluster.sockets // cluster.gpus_per_node
