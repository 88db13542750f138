"""NVLS: NVSwitches of NVLink 4 and later reduce and multicast data themselves.

In: a `RankGroup` whose GPUs share such a switch. Out: the load of each GPU's link to the switch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.common import CollectiveSchedule
from netmodel.collectives.algorithms.group import Hop, RankGroup, flow_over, hop_paths


def switch_paths(group: RankGroup, domain: int, operation: str) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The links between a domain's members and their switch, up and down, and their loads.

    Every member is the head of its share of the data. To reduce, the switch reads the share from all members (all data
    leaves every GPU) and gives the head the result. To multicast, the head sends its share once and all receive it.
    """
    members = group.domains[domain]
    count = len(members)
    pairs = [Hop(a, b) for a, b in zip(members, members[1:] + members[:1], strict=True)]
    paths = hop_paths(group.topology, pairs)  # each up to the switch and down from it
    fetched, sent = {"all_reduce": (1.0, 1.0), "reduce_scatter": (1.0, 0.0), "all_gather": (0.0, 1.0)}[operation]
    up, down = fetched + sent / count, sent + fetched / count
    rows = np.concatenate([paths[:, :1], paths[:, 1:2]])
    return rows, np.concatenate([np.full(count, up), np.full(count, down)])


def nvls_schedule(group: RankGroup, operation: str) -> CollectiveSchedule:
    """NVLS within one domain."""
    paths, loads = switch_paths(group, 0, operation)
    return CollectiveSchedule((flow_over(paths, loads),), 1, 0, 0)
