"""Rings: every channel visits all members, domain by domain, entering and leaving each through the NIC of its rail.

In: a `RankGroup`, an operation and a protocol. Out: one flow per distinct ring, and the latency of its steps. NCCL has
two channels to a NIC. They take the same links, and are one flow, unless switches hash connections to paths.
"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from netmodel.collectives.algorithms.common import CollectiveSchedule, wire_bytes
from netmodel.collectives.algorithms.group import Hop, RankGroup, flow_over, hop_paths, latencies, spread_paths

# NCCL counts thrice the overhead for posting a step of Simple that it counts for LL.
_POSTING = {"ll": 1 / 3, "ll128": 1.0, "simple": 1.0}


def ring_steps(operation: str, members: int) -> int:
    """How many steps a piece of data makes."""
    return 2 * (members - 1) if operation == "all_reduce" else members - 1


def ring_schedule(group: RankGroup, operation: str, protocol: str, root: int) -> CollectiveSchedule:
    """The rings of a group. `root`: the root rank of broadcast and reduce."""
    members = len(group.members)
    rooted = operation in ("broadcast", "reduce")
    steps = ring_steps(operation, members)
    rings = len(group.rails[0]) if group.rails else len(group.rings[0])
    copies = _connections(group)
    share = wire_bytes(protocol) * (1.0 if rooted else steps / members) / (rings * copies)
    flows, crossings, along = [], 0, 0
    for channel, copy in product(range(rings), range(copies)):
        legs, network = _legs(group, channel, channel + rings * copy)
        if rooted:  # the data does not return to the root
            skipped = "target" if operation == "broadcast" else "source"
            kept = [i for i, leg in enumerate(legs) if getattr(leg[0 if skipped == "source" else -1], skipped) != root]
            legs, network = [legs[i] for i in kept], [network[i] for i in kept]
        hops = [hop for leg in legs for hop in leg]
        flows.append(flow_over(*spread_paths(group.topology, hops, [share] * len(hops))))
        crossings = max(crossings, sum(network))
        along = max(along, int(latencies(group.topology, hop_paths(group.topology, hops)).sum()))
    rounds = steps / (members - 1 if rooted else members)  # how often every piece goes round
    return CollectiveSchedule(
        tuple(flows),
        gpu_steps=steps - rounds * crossings,
        network_steps=rounds * crossings,
        path_ns=rounds * along,
        proxy_steps=_POSTING[protocol] * steps if group.rails else 0.0,
        local_share=0.0 if rooted else 1.0 / members,  # the pieces of a broadcast are all in flight at once
    )


def _connections(group: RankGroup) -> int:
    """The number of connections of a NIC that may take different paths."""
    cluster = group.topology.cluster
    return 2 if group.rails and cluster.gpu_link != "pcie" and cluster.fabric.routing == "ecmp" else 1


def _legs(group: RankGroup, channel: int, connection: int) -> tuple[list[list[Hop]], list[bool]]:
    """The ring of a channel: the hops of every step, and whether the step crosses the network."""
    legs: list[list[Hop]] = []
    network: list[bool] = []
    domains = len(group.domains)
    for domain in range(domains):
        order = group.order(domain, channel)
        legs += [[Hop(a, b, flow=channel)] for a, b in pairwise(order)]
        network += [False] * (len(order) - 1)
        if domains == 1:
            legs.append([Hop(order[-1], order[0], flow=channel)])
            network.append(False)
            continue
        following = (domain + 1) % domains
        here, there = group.rails[domain][channel], group.rails[following][channel]
        legs.append(group.hops(order[-1], group.order(following, channel)[0], here, there, connection))
        network.append(True)
    return legs, network


def pat_schedule(group: RankGroup) -> CollectiveSchedule:
    """Parallel aggregated trees with one GPU per node: data moves by powers of two, in logarithmically many steps.
    All-gather and reduce-scatter mirror each other."""
    members, rails = len(group.members), len(group.rails[0])
    flows = []
    depth = int(np.ceil(np.log2(members)))
    farthest = 0
    for channel in range(rails):
        hops: list[Hop] = []
        loads: list[float] = []
        distance, carried = 1, 1
        while distance < members:
            pieces = min(carried, members - carried)
            for place, source in enumerate(group.members):
                other = (place + distance) % members
                here, there = group.rails[place][channel], group.rails[other][channel]
                legs = group.hops(source, group.members[other], here, there, channel)
                hops += legs
                loads += [pieces / members / rails] * len(legs)
            distance, carried = 2 * distance, carried + pieces
        paths, rows = spread_paths(group.topology, hops, loads)
        flows.append(flow_over(paths, rows))
        farthest = max(farthest, int(latencies(group.topology, paths).max()))
    return CollectiveSchedule(tuple(flows), 0, depth, depth * farthest, local_share=1.0 / members)
