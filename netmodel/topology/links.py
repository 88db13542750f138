"""A topology's links as arrays; and their changes by faults, and by adaptive routing, which merges parallel links.

In: links as wired. Out: the same links, some slow, some lost, some merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from maya.util.suggestions import did_you_mean
from netmodel.cluster import Cluster
from netmodel.cluster.fabrics import Switch
from netmodel.cluster.faults import NetworkFault
from netmodel.cluster.keys import ClusterError


class LinkKind(IntEnum):
    """The technology of a link. Calibration fits one efficiency per kind."""

    NVLINK = 0
    PCIE = 1
    NETWORK = 2


@dataclass(frozen=True)
class LinkArrays:
    """One element per link; `Topology` describes each array."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.int8]
    rate: NDArray[np.int64]
    latency: NDArray[np.int64]
    lost: NDArray[np.bool_]


def with_faults_applied(cluster: Cluster, vertices: Sequence[tuple[str, str]], links: LinkArrays) -> LinkArrays:
    """Apply the cluster's faults to the links; `vertices` are kinds and names."""
    if not cluster.faults:
        return links
    lost, rate = links.lost.copy(), links.rate.copy()
    numbers = {name: number for number, (_, name) in enumerate(vertices)}
    for fault in cluster.faults:
        broken = _links_of(cluster, fault, vertices, numbers, links)
        if fault.lost:
            lost[broken] = True
        else:
            rate[broken] = np.maximum(1, np.round(rate[broken] * fault.rate_left)).astype(np.int64)
    return replace(links, lost=lost, rate=rate)


def _links_of(
    cluster: Cluster,
    fault: NetworkFault,
    vertices: Sequence[tuple[str, str]],
    numbers: dict[str, int],
    links: LinkArrays,
) -> NDArray[np.int64]:
    for name in fault.link:
        if name not in numbers:
            raise ClusterError(
                f'{cluster.key}: fault of "{name}": nothing here has that name{did_you_mean(name, numbers)}; names are '
                f'like "node0/nic0" or "{vertices[-1][1]}", and "maya net show" draws them'
            )
    first = numbers[fault.link[0]]
    if len(fault.link) == 2:
        second = numbers[fault.link[1]]
        joined = (links.source == first) & (links.target == second)
        joined |= (links.source == second) & (links.target == first)
    else:
        joined = (links.source == first) | (links.target == first)
        kind = vertices[first][0]
        if kind == "nic":
            joined &= links.kind == LinkKind.NETWORK
        elif kind == "gpu" and cluster.gpu_link != "pcie":
            joined &= links.kind == LinkKind.NVLINK
    broken = np.flatnonzero(joined)
    names = " and ".join(fault.link)
    if not len(broken):
        raise ClusterError(f'{cluster.key}: fault of {names}: no link connects them; "maya net show" draws the links')
    if fault.cables * 2 > len(broken):
        raise ClusterError(
            f"{cluster.key}: fault of {names}: the fault has {fault.cables} cables, but there are {len(broken) // 2}"
        )
    return broken[: 2 * fault.cables] if fault.cables else broken


def merge_groups(
    links: LinkArrays, switches: Sequence[Switch], switch_at: int, first_cable: int
) -> tuple[LinkArrays, list[Switch]]:
    """Merge every group of switches into one, and all cables between two switches into one link with their summed rate.

    Packets that adaptive routing spreads evenly over equal paths see exactly this network. Switches that NICs are
    plugged into are not merged.
    """
    merged: dict[str, int] = {}
    names: dict[int, list[Switch]] = {}
    place_of = np.empty(len(switches), np.int32)
    for place, switch in enumerate(switches):
        number = merged.setdefault(switch.group or switch.name, len(merged))
        names.setdefault(number, []).append(switch)
        place_of[place] = number
    source = links.source.copy()
    target = links.target.copy()
    source[source >= switch_at] = switch_at + place_of[source[source >= switch_at] - switch_at]
    target[target >= switch_at] = switch_at + place_of[target[target >= switch_at] - switch_at]

    up = slice(first_cable, None, 2)
    pairs, first, inverse = np.unique(
        source[up].astype(np.int64) * 2**32 + target[up], return_index=True, return_inverse=True
    )
    left = np.bincount(inverse, np.where(links.lost[up], 0, links.rate[up]), len(pairs)).astype(np.int64)
    as_built = np.bincount(inverse, links.rate[up], len(pairs)).astype(np.int64)
    lower, upper = (pairs >> 32).astype(np.int32), (pairs & (2**32 - 1)).astype(np.int32)
    latency = links.latency[up][first]
    kept = slice(0, first_cable)

    def both(there: NDArray[np.int32], back: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.stack([there, back], axis=1).ravel()

    arrays = LinkArrays(
        np.concatenate([source[kept], both(lower, upper)]),
        np.concatenate([target[kept], both(upper, lower)]),
        np.concatenate([links.kind[kept], np.full(2 * len(pairs), LinkKind.NETWORK, np.int8)]),
        np.concatenate([links.rate[kept], np.repeat(np.where(left > 0, left, as_built), 2)]),
        np.concatenate([links.latency[kept], np.repeat(latency, 2)]),
        np.concatenate([links.lost[kept], np.repeat(left == 0, 2)]),
    )
    return arrays, [_of_group(group) for group in names.values()]


def _of_group(group: Sequence[Switch]) -> Switch:
    if len(group) == 1:
        return group[0]
    last = group[-1].name
    return Switch(f"{group[0].name}-{last[len(last.rstrip('0123456789')) :]}", group[0].level)
