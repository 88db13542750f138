"""Check that every GPU reaches every other.

In: a topology's tables. Out: nothing, or one `ClusterError` that names two unconnected GPUs, the gap and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netmodel.cluster import Cluster
from netmodel.cluster.keys import ClusterError
from netmodel.topology.routing import UNREACHABLE, Routes


def check_connectivity(cluster: Cluster, gpus: int, switches: Sequence[str], routes: Routes) -> None:
    """Raise ClusterError if some GPU cannot reach another."""
    ranks = np.arange(gpus)
    domain, gpu = np.divmod(ranks, routes.gpus_per_domain)
    node = ranks // routes.gpus_per_node
    hops = np.zeros((gpus, routes.nic_up.shape[1]), np.int32)
    for number, local in enumerate(routes.local):
        here = routes.local_of[domain] == number
        hops[here] = local.gpu_nic_hops[gpu[here]]
    usable = (hops > 0) & (routes.nic_up[node] >= 0)
    # Two switches are connected if the first switch that they reach is the same.
    joined = np.argmax(routes.fabric.distance < UNREACHABLE, axis=1)[routes.nic_switch[node]]
    parts = [frozenset(joined[rank][usable[rank]].tolist()) for rank in ranks]
    first_of: dict[tuple[int, frozenset[int]], int] = {}
    for rank in ranks.tolist():
        first_of.setdefault((int(domain[rank]), parts[rank]), rank)
    kinds = list(first_of.items())
    if len({part for (_, part), _ in kinds}) > 1 or not kinds[0][0][1]:
        for place, ((home, part), rank) in enumerate(kinds):
            for (other_home, other_part), other in kinds[place + 1 :]:
                if home != other_home and not part & other_part:
                    raise _unreachable(cluster, switches, routes, rank, other, part, other_part)
    for home in np.flatnonzero(routes.local_of).tolist():
        local = routes.local[routes.local_of[home]]
        members = [
            rank for rank in range(home * routes.gpus_per_domain, (home + 1) * routes.gpus_per_domain) if rank < gpus
        ]
        for rank in members:
            for other in members:
                inside = local.gpu_gpu_choices[rank - members[0], other - members[0]] > 0 or rank == other
                if not inside and not parts[rank] & parts[other]:
                    raise _unreachable(cluster, switches, routes, rank, other, parts[rank], parts[other])


def _unreachable(
    cluster: Cluster,
    switches: Sequence[str],
    routes: Routes,
    rank: int,
    other: int,
    part: frozenset[int],
    other_part: frozenset[int],
) -> ClusterError:
    names = [f"node{end // routes.gpus_per_node}/gpu{end % routes.gpus_per_node}" for end in (rank, other)]
    alone = [name for name, switches_of in zip(names, (part, other_part), strict=True) if not switches_of]
    if alone:
        why = f"no working NIC is left to {' and '.join(alone)}"
    else:
        ends = [routes.nic_switch[end // routes.gpus_per_node, routes.nics[end, 0]] for end in (rank, other)]
        why = f"nothing connects {switches[ends[0]]} and {switches[ends[1]]}"
    todo = "remove one of the faults" if cluster.faults else "connect them in [fabric]"
    return ClusterError(f"{cluster.key}: {names[0]} cannot reach {names[1]}: {why}; {todo}")
