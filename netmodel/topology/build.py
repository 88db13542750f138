"""Build the graph of a cluster.

In: a `Cluster` and the number of GPUs in use. Out: a `Topology` of whole nodes and as much fabric as they need, with
faults applied and every GPU able to reach every other; or one `ClusterError` that says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster import Cluster
from netmodel.cluster.fabrics import Wiring
from netmodel.cluster.keys import ClusterError
from netmodel.topology.connectivity import check_connectivity
from netmodel.topology.links import LinkArrays, LinkKind, merge_groups, with_faults_applied
from netmodel.topology.node import NVSWITCH, NodeWiring, wire_node
from netmodel.topology.route_tables import Places, make_routes
from netmodel.topology.topology import Topology, Vertex


def build_topology(cluster: Cluster, gpus: int) -> Topology:
    """The graph of the first `gpus` GPUs of a cluster."""
    if gpus < 1:
        raise ClusterError(f"{cluster.key}: a topology of {gpus} GPUs was requested; at least 1 is needed")
    nodes = -(-gpus // cluster.gpus_per_node)
    node = wire_node(cluster)
    fabric = wire_fabric(cluster, nodes)
    vertices, inside, nvswitches = _place_vertices(cluster, nodes, node, fabric)
    switch_at = len(vertices) - len(fabric.switches)

    links = _Links()
    for number in range(nodes):
        nvswitch = nvswitches[number // cluster.gpu_link_nodes]
        for wire in node.wires:
            first, second = (nvswitch if end == NVSWITCH else inside[number, end] for end in (wire.first, wire.second))
            links.add(first, second, wire.kind, wire.rate, wire.latency, wire.latency)
    cable_latency, switch_latency = cluster.fabric.link_latency, cluster.fabric.switch_latency
    to_switch, to_nic = cluster.nic_latency + cable_latency + switch_latency, cable_latency + cluster.nic_latency
    nic_up = np.empty((nodes, cluster.nics_per_node), np.int32)
    for number in range(nodes):
        for nic in range(cluster.nics_per_node):
            vertex, switch = inside[number, cluster.gpus_per_node + nic], switch_at + fabric.attached[number][nic]
            nic_up[number, nic] = links.add(vertex, switch, LinkKind.NETWORK, cluster.nic_rate, to_switch, to_nic)
    first_cable = len(links.source)
    for cable in fabric.cables:
        latency = cable.latency + switch_latency
        links.add(switch_at + cable.lower, switch_at + cable.upper, LinkKind.NETWORK, cable.rate, latency, latency)

    arrays = with_faults_applied(cluster, [(vertex.kind, vertex.name) for vertex in vertices], links.arrays())
    costs = np.repeat(np.array([cable.cost for cable in fabric.cables], np.int16), 2)
    if cluster.fabric.routing == "adaptive":
        arrays, switches = merge_groups(arrays, fabric.switches, switch_at, first_cable)
        costs = np.ones(len(arrays.source) - first_cable, np.int16)  # all cables of a tree cost the same
        vertices[switch_at:] = [Vertex("switch", switch.name, -1, switch.level) for switch in switches]
    attached = np.array(fabric.attached, np.int32)
    places = Places(nodes, inside, attached, nic_up, 2 * len(node.wires), first_cable, costs, switch_at, len(vertices))
    routes = make_routes(cluster, places, arrays)
    topology = Topology(
        cluster,
        gpus,
        tuple(vertices),
        arrays.source,
        arrays.target,
        arrays.kind,
        arrays.rate,
        arrays.latency,
        arrays.lost,
        routes,
    )
    check_connectivity(cluster, gpus, [vertex.name for vertex in vertices[switch_at:]], routes)
    return topology


def wire_fabric(cluster: Cluster, nodes: int) -> Wiring:
    """A cluster's switches and cables for `nodes` nodes, not merged by adaptive routing."""
    try:
        return cluster.fabric.wire(nodes, cluster.nics_per_node, cluster.nic_rate)
    except ClusterError as error:
        raise ClusterError(f"{cluster.key}: {error}") from error


@dataclass
class _Links:
    """Collects links; the two directions of a cable are neighbours."""

    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    rate: list[int] = field(default_factory=list)
    latency: list[int] = field(default_factory=list)

    def add(self, first: int, second: int, kind: LinkKind, rate: int, latency: int, latency_back: int) -> int:
        self.source += (first, second)
        self.target += (second, first)
        self.kind += (kind, kind)
        self.rate += (rate, rate)
        self.latency += (latency, latency_back)
        return len(self.source) - 2

    def arrays(self) -> LinkArrays:
        return LinkArrays(
            np.array(self.source, np.int32),
            np.array(self.target, np.int32),
            np.array(self.kind, np.int8),
            np.array(self.rate, np.int64),
            np.array(self.latency, np.int64),
            np.zeros(len(self.source), bool),
        )


def _place_vertices(
    cluster: Cluster, nodes: int, node: NodeWiring, fabric: Wiring
) -> tuple[list[Vertex], NDArray[np.int64], list[int]]:
    """All vertices, GPUs first and switches last; [node, index in it] -> vertex; [domain] -> its NVSwitch, or -1."""
    per_node, per_rack = cluster.gpus_per_node, cluster.gpu_link_nodes
    vertices = [Vertex("gpu", f"node{number}/gpu{gpu}", number) for number in range(nodes) for gpu in range(per_node)]
    inside = np.empty((nodes, len(node.vertices)), np.int64)
    inside[:, :per_node] = np.arange(nodes * per_node).reshape(nodes, per_node)
    for number in range(nodes):
        for place, (kind, name) in enumerate(node.vertices[per_node:], per_node):
            inside[number, place] = len(vertices)
            vertices.append(Vertex(kind, f"node{number}/{name}", number))
    nvswitches = [-1] * -(-nodes // per_rack)
    if cluster.gpu_link == "nvswitch":
        for domain in range(len(nvswitches)):
            nvswitches[domain] = len(vertices)
            name = f"node{domain}/nvswitch" if per_rack == 1 else f"rack{domain}/nvswitch"
            vertices.append(Vertex("nvswitch", name, domain if per_rack == 1 else -1))
    vertices += [Vertex("switch", switch.name, -1, switch.level) for switch in fabric.switches]
    return vertices, inside, nvswitches
