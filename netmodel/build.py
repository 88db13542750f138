"""From a cluster to its graph.

In: a `Cluster` and how many of its GPUs are used. Out: a `Topology` of whole nodes and of as much fabric as they need,
its faults applied and every GPU able to reach every other, or one `ClusterError` that says what is wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster import Cluster
from netmodel.fabrics.base import Wiring
from netmodel.faults import Fault
from netmodel.keys import ClusterError
from netmodel.link_kind import LinkKind
from netmodel.local_paths import LocalLinks, LocalPaths, search
from netmodel.node import NVSWITCH, NodeWiring, wire_node
from netmodel.routing import FabricRoutes, Routes, distances
from netmodel.settings_file import did_you_mean
from netmodel.topology import Topology, Vertex


class _Links:
    """Links as they are added, both directions of each cable together."""

    def __init__(self) -> None:
        self.source: list[int] = []
        self.target: list[int] = []
        self.kind: list[int] = []
        self.rate: list[int] = []
        self.latency: list[int] = []

    def add(self, first: int, second: int, kind: LinkKind, rate: int, latency: int, latency_back: int) -> int:
        self.source += (first, second)
        self.target += (second, first)
        self.kind += (kind, kind)
        self.rate += (rate, rate)
        self.latency += (latency, latency_back)
        return len(self.source) - 2


def build_topology(cluster: Cluster, gpus: int) -> Topology:
    """The graph of the first `gpus` GPUs of a cluster."""
    if gpus < 1:
        raise ClusterError(f"{cluster.key}: a topology of {gpus} GPUs was asked for; at least 1 is needed")
    nodes = -(-gpus // cluster.gpus_per_node)
    node = wire_node(cluster)
    try:
        fabric = cluster.fabric.wire(nodes, cluster.nics_per_node, cluster.nic_rate)
    except ClusterError as error:
        raise ClusterError(f"{cluster.key}: {error}") from error

    vertices, places, nvswitches = _place_vertices(cluster, nodes, node, fabric)
    links = _Links()
    for number in range(nodes):
        nvswitch = nvswitches[number // cluster.gpu_link_nodes]
        for wire in node.wires:
            first = nvswitch if wire.first == NVSWITCH else int(places[number, wire.first])
            second = nvswitch if wire.second == NVSWITCH else int(places[number, wire.second])
            links.add(first, second, wire.kind, wire.rate, wire.latency, wire.latency)
    switch_at = len(vertices) - len(fabric.switches)
    to_switch = cluster.nic_latency + cluster.fabric.link_latency + cluster.fabric.switch_latency
    to_nic = cluster.fabric.link_latency + cluster.nic_latency
    nic_up = np.empty((nodes, cluster.nics_per_node), np.int32)
    for number in range(nodes):
        for nic in range(cluster.nics_per_node):
            vertex, switch = int(places[number, cluster.gpus_per_node + nic]), int(fabric.attached[number, nic])
            link = links.add(vertex, switch_at + switch, LinkKind.NETWORK, cluster.nic_rate, to_switch, to_nic)
            nic_up[number, nic] = link
    first_cable = len(links.source)
    for cable in fabric.cables:
        latency = cable.latency + cluster.fabric.switch_latency
        lower, upper = switch_at + cable.lower, switch_at + cable.upper
        links.add(lower, upper, LinkKind.NETWORK, cable.rate, latency, latency)

    source, target = np.array(links.source, np.int32), np.array(links.target, np.int32)
    kind, rate = np.array(links.kind, np.int8), np.array(links.rate, np.int64)
    rate, lost = _apply_faults(cluster, vertices, source, target, kind, rate)
    routes = _routes(cluster, nodes, node, fabric, (places, source, target, kind, lost), nic_up, first_cable, switch_at)
    topology = Topology(
        cluster, gpus, tuple(vertices), source, target, kind, rate, np.array(links.latency, np.int64), lost, routes
    )
    _check_reach(topology)
    return topology


def _place_vertices(
    cluster: Cluster, nodes: int, node: NodeWiring, fabric: Wiring
) -> tuple[list[Vertex], NDArray[np.int64], list[int]]:
    """All vertices, GPUs first; [node, place in it] -> vertex; [domain] -> the vertex of its switch, or -1."""
    per_node, per_rack = cluster.gpus_per_node, cluster.gpu_link_nodes
    vertices = [Vertex("gpu", f"node{number}/gpu{gpu}", number) for number in range(nodes) for gpu in range(per_node)]
    places = np.empty((nodes, len(node.vertices)), np.int64)
    places[:, :per_node] = np.arange(nodes * per_node).reshape(nodes, per_node)
    for number in range(nodes):
        for place, (kind, name) in enumerate(node.vertices[per_node:], per_node):
            places[number, place] = len(vertices)
            vertices.append(Vertex(kind, f"node{number}/{name}", number))
    nvswitches = [-1] * -(-nodes // per_rack)
    if cluster.gpu_link == "nvswitch":
        for domain in range(len(nvswitches)):
            nvswitches[domain] = len(vertices)
            name = f"node{domain}/nvswitch" if per_rack == 1 else f"rack{domain}/nvswitch"
            vertices.append(Vertex("nvswitch", name, domain if per_rack == 1 else -1))
    vertices += [Vertex("switch", switch.name, -1, switch.level) for switch in fabric.switches]
    return vertices, places, nvswitches


def _apply_faults(
    cluster: Cluster,
    vertices: list[Vertex],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    kind: NDArray[np.int8],
    rate: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    lost = np.zeros(len(rate), bool)
    rate = rate.copy()
    numbers = {vertex.name: number for number, vertex in enumerate(vertices)}
    for fault in cluster.faults:
        links = _links_of_fault(cluster, fault, vertices, numbers, source, target, kind)
        if fault.lost:
            lost[links] = True
        else:
            rate[links] = np.maximum(1, np.round(rate[links] * fault.rate_left)).astype(np.int64)
    return rate, lost


def _links_of_fault(
    cluster: Cluster,
    fault: Fault,
    vertices: list[Vertex],
    numbers: dict[str, int],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    kind: NDArray[np.int8],
) -> NDArray[np.int64]:
    for name in fault.link:
        if name not in numbers:
            raise ClusterError(
                f'{cluster.key}: faults: there is no "{name}" here{did_you_mean(name, numbers)}; names are as '
                f'"maya net show" has them, e.g. "node0/nic0" or "{vertices[-1].name}"'
            )
    ends = [numbers[name] for name in fault.link]
    if len(ends) == 2:
        joined = ((source == ends[0]) & (target == ends[1])) | ((source == ends[1]) & (target == ends[0]))
    else:
        joined = (source == ends[0]) | (target == ends[0])
        if vertices[ends[0]].kind == "nic":
            joined &= kind == LinkKind.NETWORK
        elif vertices[ends[0]].kind == "gpu" and cluster.gpu_link != "pcie":
            joined &= kind == LinkKind.NVLINK
    links = np.flatnonzero(joined)
    if not len(links):
        raise ClusterError(f"{cluster.key}: faults: no link joins {' and '.join(fault.link)}")
    if fault.cables * 2 > len(links):
        raise ClusterError(
            f"{cluster.key}: faults: {' - '.join(fault.link)} has {len(links) // 2} cables; "
            f"{fault.cables} are said to fail"
        )
    return links[: 2 * fault.cables] if fault.cables else links


_Arrays = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int8], NDArray[np.bool_]]


def _routes(
    cluster: Cluster,
    nodes: int,
    node: NodeWiring,
    fabric: Wiring,
    arrays: _Arrays,
    nic_up: NDArray[np.int32],
    first_cable: int,
    switch_at: int,
) -> Routes:
    _, source, target, _, lost = arrays
    per_domain = cluster.gpu_link_nodes
    links_per_domain = 2 * len(node.wires) * per_domain
    domains = -(-nodes // per_domain)
    local_of = np.zeros(domains, np.int32)
    local = [_local_paths(cluster, 0, nodes, links_per_domain, arrays, np.zeros(links_per_domain, bool))]
    for domain in range(domains):
        here = lost[domain * links_per_domain : (domain + 1) * links_per_domain]
        if here[: 2 * len(node.wires) * nodes].any():
            local_of[domain] = len(local)
            local.append(_local_paths(cluster, domain, nodes, links_per_domain, arrays, here))

    up = np.where(lost[nic_up], np.int32(-1), nic_up)
    nics, counts = _nearest_nics(cluster, nodes, local, local_of, up)
    order = np.empty(fabric.attached.size, np.int64)
    order[np.argsort(fabric.attached.ravel(), kind="stable")] = np.arange(fabric.attached.size)
    return Routes(
        gpus_per_node=cluster.gpus_per_node,
        gpus_per_domain=cluster.gpus_per_node * per_domain,
        links_per_domain=links_per_domain,
        local=tuple(local),
        local_of=local_of,
        nics=nics,
        nic_counts=counts,
        nic_up=up,
        nic_down=np.where(up >= 0, up + 1, np.int32(-1)).astype(np.int32),
        nic_switch=fabric.attached,
        nic_order=order.reshape(fabric.attached.shape),
        fabric=_fabric_routes(cluster, len(fabric.switches), source, target, lost, first_cable, switch_at),
    )


def _local_paths(
    cluster: Cluster, domain: int, nodes: int, links_per_domain: int, arrays: _Arrays, lost: NDArray[np.bool_]
) -> LocalPaths:
    places, source, target, kind, _ = arrays
    first = domain * cluster.gpu_link_nodes
    members = range(first, min(nodes, first + cluster.gpu_link_nodes))
    links = slice(
        domain * links_per_domain, domain * links_per_domain + links_per_domain * len(members) // cluster.gpu_link_nodes
    )
    per_node, nics = cluster.gpus_per_node, cluster.nics_per_node
    return search(
        LocalLinks(
            source[links].tolist(),
            target[links].tolist(),
            kind[links].tolist(),
            lost[: links.stop - links.start].tolist(),
        ),
        [int(vertex) for member in members for vertex in places[member, :per_node]],
        [places[member, per_node : per_node + nics].tolist() for member in members],
        per_node,
    )


def _nearest_nics(
    cluster: Cluster, nodes: int, local: list[LocalPaths], local_of: NDArray[np.int32], nic_up: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """[rank, place] -> NIC, and [rank] -> how many: those of its affinity that work, else the nearest that do."""
    per_node = cluster.gpus_per_node
    near = [[nic for nic, gpus in enumerate(cluster.nic_affinity) if gpu in gpus] for gpu in range(per_node)]
    rows = []
    for rank in range(nodes * per_node):
        node = rank // per_node
        hops = local[local_of[node // cluster.gpu_link_nodes]].gpu_nic_hops[rank % (per_node * cluster.gpu_link_nodes)]
        working = [nic for nic in range(cluster.nics_per_node) if hops[nic] and nic_up[node, nic] >= 0]
        chosen = [nic for nic in near[rank % per_node] if nic in working]
        if not chosen and working:
            least = min(hops[nic] for nic in working)
            chosen = [nic for nic in working if hops[nic] == least]
        rows.append(chosen)
    width = max(1, max(len(row) for row in rows))
    nics = np.array([(row * width)[:width] if row else [0] * width for row in rows], np.int32)
    return nics, np.array([max(1, len(row)) for row in rows], np.int32)


def _fabric_routes(
    cluster: Cluster,
    switches: int,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    lost: NDArray[np.bool_],
    first_cable: int,
    switch_at: int,
) -> FabricRoutes:
    links = first_cable + np.flatnonzero(~lost[first_cable:])
    here, there = source[links].astype(np.int64) - switch_at, target[links].astype(np.int64) - switch_at
    order = np.lexsort((links, there, here))
    links, here, there = links[order], here[order], there[order]
    pairs, first, cables = np.unique(here * switches + there, return_index=True, return_counts=True)
    at, neighbour = np.divmod(pairs, switches)
    degree = np.bincount(at, minlength=switches) if len(pairs) else np.zeros(switches, np.int64)
    place = np.arange(len(pairs)) - (np.cumsum(degree) - degree)[at]
    shape = (switches, max(1, int(degree.max(initial=0))))
    neighbours = np.repeat(np.arange(switches, dtype=np.int32)[:, None], shape[1], axis=1)
    cable_table, first_table = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    neighbours[at, place], cable_table[at, place], first_table[at, place] = neighbour, cables, first
    return FabricRoutes(
        neighbours,
        cable_table,
        first_table,
        links.astype(np.int32),
        distances(neighbours, cable_table),
        static=cluster.fabric.routing == "d-mod-k",
    )


def _check_reach(topology: Topology) -> None:
    """Refuses a graph in which some GPU cannot reach some other."""
