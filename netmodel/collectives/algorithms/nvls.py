"""NVLS: NVSwitches of NVLink 4 and later reduce and multicast data themselves.

In: a `RankGroup` whose GPUs share such a switch. Out: the load of each GPU's link to the switch.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.common import CollectiveSchedule
from netmodel.collectives.algorithms.group import Hops, RankGroup, flow_over, hop_paths


def switch_paths(group: RankGroup, operation: str) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The links between the members of each domain and their switch, up and down, and their loads.

    Every member is the head of its share of the data. To reduce, the switch reads the share from all members (all data
    leaves every GPU) and gives the head the result. To multicast, the head sends its share once and all receive it.
    """
    members = np.fromiter(chain.from_iterable(group.domains), np.int64, len(group.members))
    count = np.repeat(group.sizes, group.sizes)  # for each member
    first = np.repeat(np.cumsum(group.sizes) - group.sizes, group.sizes)
    place = np.arange(len(members))
    following = first + (place - first + 1) % count
    paths = hop_paths(group.topology, Hops.inside(members, members[following]))  # up to the switch and down from it
    fetched, sent = {"all_reduce": (1.0, 1.0), "reduce_scatter": (1.0, 0.0), "all_gather": (0.0, 1.0)}[operation]
    rows = np.full((2 * len(members), 1), -1, np.int32)
    loads = np.empty(2 * len(members))
    for column, load, at in ((0, fetched + sent / count, 0), (1, sent + fetched / count, count)):
        rows[first + place + at] = paths[:, column : column + 1] if paths.shape[1] > column else -1
        loads[first + place + at] = load
    return rows, loads


def nvls_schedule(group: RankGroup, operation: str) -> CollectiveSchedule:
    """NVLS within one domain."""
    paths, loads = switch_paths(group, operation)
    return CollectiveSchedule((flow_over(paths, loads),), 1, 0, 0)
