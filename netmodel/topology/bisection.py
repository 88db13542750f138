"""Bisection bandwidth: the rate at which one half of a cluster can send to the other through the fabric.

In: a topology with its faults. Out: bytes per second, the maximum flow of switches and cables from the NICs of the
first half of the nodes to those of the second.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from netmodel.topology.links import LinkKind
from netmodel.topology.topology import Topology


def bisection_rate(topology: Topology) -> tuple[int, int] | None:
    """The rate of the fabric between the halves, and of the NICs of the smaller half; None if all GPUs reach each other
    without the fabric. GPU links between nodes do not count, and nodes that they connect stay in one half.
    """
    cluster = topology.cluster
    domains = -(-topology.nodes // cluster.gpu_link_nodes)
    if domains < 2:
        return None
    first_half = domains // 2 * cluster.gpu_link_nodes
    kinds = np.array([vertex.kind == "switch" for vertex in topology.vertices])
    switch_at = int(np.argmax(kinds))
    switches = len(kinds) - switch_at
    source, sink = switches, switches + 1
    network = (topology.kind == LinkKind.NETWORK) & ~topology.lost
    capacity: dict[tuple[int, int], int] = {}
    able = [0, 0]
    for link in np.flatnonzero(network).tolist():
        start, end, rate = int(topology.source[link]), int(topology.target[link]), int(topology.rate[link])
        if kinds[start] and kinds[end]:
            pair = (start - switch_at, end - switch_at)
        elif kinds[end]:
            second = topology.vertices[start].node >= first_half
            able[second] += rate
            if second:
                continue
            pair = (source, end - switch_at)
        else:
            if topology.vertices[end].node < first_half:
                continue
            pair = (start - switch_at, sink)
        capacity[pair] = capacity.get(pair, 0) + rate
    return _largest_flow(capacity, switches + 2, source, sink), min(able)


def _largest_flow(capacity: dict[tuple[int, int], int], vertices: int, source: int, sink: int) -> int:
    """Dinic's algorithm: shortest augmenting paths, a level graph at a time."""
    edges: list[list[int]] = [[] for _ in range(vertices)]
    target: list[int] = []
    left: list[int] = []
    for (start, end), rate in capacity.items():
        for tail, head, room in ((start, end, rate), (end, start, 0)):
            edges[tail].append(len(target))
            target.append(head)
            left.append(room)
    total = 0
    while True:
        level = [-1] * vertices
        level[source] = 0
        waiting = deque([source])
        while waiting:
            vertex = waiting.popleft()
            for edge in edges[vertex]:
                if left[edge] and level[target[edge]] < 0:
                    level[target[edge]] = level[vertex] + 1
                    waiting.append(target[edge])
        if level[sink] < 0:
            return total
        following = [0] * vertices
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                room = min(left[edge] for edge in path)
                total += room
                for edge in path:
                    left[edge] -= room
                    left[edge ^ 1] += room
                path, vertex = [], source
                continue
            while following[vertex] < len(edges[vertex]):
                edge = edges[vertex][following[vertex]]
                if left[edge] and level[target[edge]] == level[vertex] + 1:
                    path.append(edge)
                    vertex = target[edge]
                    break
                following[vertex] += 1
            else:
                if not path:
                    break
                vertex = target[path.pop() ^ 1]
                following[vertex] += 1
