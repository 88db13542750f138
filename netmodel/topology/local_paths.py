"""Paths inside a domain (a node, or the nodes that share an NVSwitch), found once and kept as tables.

In: the links of a domain, numbered from its first. Out: `LocalPaths`: for every pair of its GPUs, and every GPU and NIC
of one node, the shortest paths as rows of link numbers, padded with -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.topology.links import LinkKind


@dataclass(frozen=True)
class LocalLinks:
    """The working links of a domain."""

    source: Sequence[int]
    target: Sequence[int]
    kind: Sequence[int]
    lost: Sequence[bool]


@dataclass(frozen=True)
class LocalPaths:
    """Tables of paths. `choices` counts the equal paths of a pair: 0 where there is none."""

    gpu_gpu: NDArray[np.int32]  # [GPU, GPU, choice, hop]
    gpu_gpu_choices: NDArray[np.int32]
    gpu_nic: NDArray[np.int32]  # [GPU, NIC of its node, hop]
    nic_gpu: NDArray[np.int32]
    gpu_nic_hops: NDArray[np.int32]  # 0 where there is no path


def search(
    links: LocalLinks, gpus: Sequence[int], nics_of_node: Sequence[Sequence[int]], gpus_per_node: int
) -> LocalPaths:
    """All shortest paths of a domain: over GPU links where possible, and to NICs over PCIe where possible."""
    over_nvlink = _Search(links, lambda kind: kind == LinkKind.NVLINK)
    over_pcie = _Search(links, lambda kind: kind == LinkKind.PCIE)
    over_all = _Search(links, lambda kind: True)

    between_gpus: dict[tuple[int, int], list[list[int]]] = {}
    to_nics: dict[tuple[int, int], list[int]] = {}
    from_nics: dict[tuple[int, int], list[int]] = {}
    for place, gpu in enumerate(gpus):
        nics = nics_of_node[place // gpus_per_node]
        nvlink, everything, pcie = over_nvlink.tree(gpu), None, over_pcie.tree(gpu)
        for other_place, other in enumerate(gpus):
            if other == gpu:
                continue
            between_gpus[place, other_place] = over_nvlink.paths(nvlink, other) or over_pcie.paths(pcie, other)
        for nic_place, nic in enumerate(nics):
            paths = over_pcie.paths(pcie, nic)
            if not paths:
                everything = everything or over_all.tree(gpu)
                paths = over_all.paths(everything, nic)
            if paths:
                to_nics[place, nic_place] = paths[0]
                # Both directions of a wire are neighbours (2i, 2i + 1) and are lost together.
                from_nics[place, nic_place] = [link ^ 1 for link in reversed(paths[0])]

    nics_per_node = len(nics_of_node[0])
    choices = np.zeros((len(gpus), len(gpus)), np.int32)
    for pair, paths in between_gpus.items():
        choices[pair] = len(paths)
    most = max(1, int(choices.max()))
    gpu_width = max((len(path) for paths in between_gpus.values() for path in paths), default=1)
    gpu_gpu = np.full((len(gpus), len(gpus), most, gpu_width), -1, np.int32)
    for (place, other), paths in between_gpus.items():
        for choice, path in enumerate(paths):
            gpu_gpu[place, other, choice, : len(path)] = path
    nic_width = max((len(path) for path in to_nics.values()), default=1)
    gpu_nic = np.full((len(gpus), nics_per_node, nic_width), -1, np.int32)
    nic_gpu = gpu_nic.copy()
    hops = np.zeros((len(gpus), nics_per_node), np.int32)
    for pair, path in to_nics.items():
        gpu_nic[pair][: len(path)] = path
        nic_gpu[pair][: len(path)] = from_nics[pair]
        hops[pair] = len(path)
    return LocalPaths(gpu_gpu, choices, gpu_nic, nic_gpu, hops)


@dataclass(frozen=True)
class _Tree:
    """The vertices reachable from one vertex: their distances, and the last links of their shortest paths."""

    origin: int
    distance: dict[int, int]
    arrivals: dict[int, list[int]]


class _Search:
    def __init__(self, links: LocalLinks, allowed: Callable[[int], bool]) -> None:
        self._source, self._target = links.source, links.target
        self._leaving: dict[int, list[int]] = {}
        for link, (source, kind, lost) in enumerate(zip(links.source, links.kind, links.lost, strict=True)):
            if allowed(kind) and not lost:
                self._leaving.setdefault(source, []).append(link)

    def tree(self, origin: int) -> _Tree:
        distance, arrivals, frontier = {origin: 0}, {}, [origin]
        while frontier:
            following = []
            for vertex in frontier:
                for link in self._leaving.get(vertex, ()):
                    target = self._target[link]
                    if target not in distance:
                        distance[target] = distance[vertex] + 1
                        arrivals[target] = [link]
                        following.append(target)
                    elif distance[target] == distance[vertex] + 1:
                        arrivals[target].append(link)
            frontier = following
        return _Tree(origin, distance, arrivals)

    def paths(self, tree: _Tree, target: int) -> list[list[int]]:
        if target == tree.origin:
            return [[]]
        if target not in tree.distance:
            return []
        return [[*path, link] for link in tree.arrivals[target] for path in self.paths(tree, self._source[link])]
