"""Build the tables in which routing.py looks up paths.

In: a topology's links, and the positions of nodes, NICs and switches among its vertices. Out: `Routes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.cluster import Cluster
from netmodel.topology.links import LinkArrays
from netmodel.topology.local_paths import LocalLinks, LocalPaths, search
from netmodel.topology.routing import FabricRoutes, Routes, distances


@dataclass(frozen=True)
class Places:
    """Positions of vertices and links. Links are ordered: those of each node, as many per node; NIC cables; the
    fabric."""

    nodes: int
    inside: NDArray[np.int64]  # [node, index in it] -> vertex
    attached: NDArray[np.int32]  # [node, NIC] -> switch
    nic_up: NDArray[np.int32]  # [node, NIC] -> the link to its switch
    links_per_node: int
    first_cable: int
    costs: NDArray[np.int16]  # of the fabric's links
    switch_at: int
    vertices: int


def make_routes(cluster: Cluster, places: Places, links: LinkArrays) -> Routes:
    """The tables of all paths. Domains without faults share one table."""
    links_per_domain = places.links_per_node * cluster.gpu_link_nodes
    domains = -(-places.nodes // cluster.gpu_link_nodes)
    local_of = np.zeros(domains, np.int32)
    local = [_local_paths(cluster, places, links, 0, as_built=True)]
    broken = np.flatnonzero(links.lost[: places.links_per_node * places.nodes]) // links_per_domain
    for domain in np.unique(broken).tolist():
        local_of[domain] = len(local)
        local.append(_local_paths(cluster, places, links, domain, as_built=False))

    nic_up = np.where(links.lost[places.nic_up], np.int32(-1), places.nic_up).astype(np.int32)
    nics, counts = _nearest_nics(cluster, places.nodes, local, local_of, nic_up)
    order = np.empty(places.attached.size, np.int64)
    order[np.argsort(places.attached.ravel(), kind="stable")] = np.arange(places.attached.size)
    return Routes(
        gpus_per_node=cluster.gpus_per_node,
        gpus_per_domain=cluster.gpus_per_node * cluster.gpu_link_nodes,
        links_per_domain=links_per_domain,
        local=tuple(local),
        local_of=local_of,
        nics=nics,
        nic_counts=counts,
        nic_up=nic_up,
        nic_down=np.where(nic_up >= 0, nic_up + 1, -1).astype(np.int32),
        nic_switch=places.attached,
        nic_order=order.reshape(places.attached.shape),
        fabric=_fabric_routes(cluster, places, links),
    )


def _local_paths(cluster: Cluster, places: Places, links: LinkArrays, domain: int, *, as_built: bool) -> LocalPaths:
    first = domain * cluster.gpu_link_nodes
    members = range(first, min(places.nodes, first + cluster.gpu_link_nodes))
    here = slice(members.start * places.links_per_node, members.stop * places.links_per_node)
    gpus, nics = cluster.gpus_per_node, cluster.nics_per_node
    lost = links.lost[here] & (not as_built)
    return search(
        LocalLinks(links.source[here].tolist(), links.target[here].tolist(), links.kind[here].tolist(), lost.tolist()),
        places.inside[members.start : members.stop, :gpus].ravel().tolist(),
        places.inside[members.start : members.stop, gpus : gpus + nics].tolist(),
        gpus,
    )


def _nearest_nics(
    cluster: Cluster, nodes: int, local: list[LocalPaths], local_of: NDArray[np.int32], nic_up: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """[rank, index] -> NIC, and [rank] -> number of NICs: the working ones of its affinity, else the nearest working
    ones."""
    per_node = cluster.gpus_per_node
    near = [[nic for nic, gpus in enumerate(cluster.nic_affinity) if gpu in gpus] for gpu in range(per_node)]
    rows = []
    for rank in range(nodes * per_node):
        node, gpu = divmod(rank, per_node)
        domain = node // cluster.gpu_link_nodes
        chosen = near[gpu]
        if local_of[domain] or (nic_up[node] < 0).any():
            hops = local[local_of[domain]].gpu_nic_hops[rank % (per_node * cluster.gpu_link_nodes)]
            working = [nic for nic in range(cluster.nics_per_node) if hops[nic] and nic_up[node, nic] >= 0]
            least = min((hops[nic] for nic in working), default=0)
            chosen = [nic for nic in chosen if nic in working] or [nic for nic in working if hops[nic] == least]
        rows.append(chosen)
    width = max(1, max(len(row) for row in rows))
    nics = np.array([(row * width)[:width] or [0] * width for row in rows], np.int32)
    return nics, np.array([max(1, len(row)) for row in rows], np.int32)


def _fabric_routes(cluster: Cluster, places: Places, links: LinkArrays) -> FabricRoutes:
    switches = places.vertices - places.switch_at
    left = places.first_cable + np.flatnonzero(~links.lost[places.first_cable :])
    here = links.source[left].astype(np.int64) - places.switch_at
    there = links.target[left].astype(np.int64) - places.switch_at
    order = np.lexsort((left, there, here))
    pairs, first, cables = np.unique((here * switches + there)[order], return_index=True, return_counts=True)
    at, neighbour = np.divmod(pairs, switches)
    degree = np.bincount(at, minlength=switches)
    place = np.arange(len(pairs)) - (np.cumsum(degree) - degree)[at]
    shape = (switches, max(1, int(degree.max(initial=0))))
    neighbours = np.repeat(np.arange(switches, dtype=np.int32)[:, None], shape[1], axis=1)
    cable_table, first_table, cost_table = (
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int16),
    )
    neighbours[at, place], cable_table[at, place], first_table[at, place] = neighbour, cables, first
    cost_table[at, place] = places.costs[left - places.first_cable][order][first]
    return FabricRoutes(
        neighbours,
        cable_table,
        cost_table,
        first_table,
        left[order].astype(np.int32),
        distances(neighbours, cable_table, cost_table),
        static=cluster.fabric.routing == "d-mod-k",
    )
