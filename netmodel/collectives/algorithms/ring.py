"""Rings: every channel visits all members, domain by domain, entering and leaving each through the NIC of its rail.

In: a `RankGroup`, an operation and a protocol. Out: one flow per distinct ring, and the latency of its steps. NCCL has
two channels to a NIC. They take the same links, and are one flow, unless switches hash connections to paths.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.common import CollectiveSchedule, wire_bytes
from netmodel.collectives.algorithms.group import Hops, Int64s, RankGroup, RoutedHops, joined_hops, route_hops

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
    routed = [
        _routed(group, channel, channel + rings * copy, operation if rooted else "", root)
        for channel, copy in product(range(rings), range(copies))
    ]
    crosses = len(group.domains) > 1
    ends = np.cumsum(group.sizes) - 1  # the legs that leave a domain
    crossings = max(int(_kept(group, channel, operation, root)[ends].sum()) for channel in range(rings)) * crosses
    along = max(each.total_latency_ns for each in routed)
    rounds = steps / (members - 1 if rooted else members)  # how often every piece goes round
    return CollectiveSchedule(
        tuple(each.flow(share) for each in routed),
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


def _kept(group: RankGroup, channel: int, operation: str, root: int) -> NDArray[np.bool_]:
    """For each leg of a ring, whether data take it: those of a broadcast or reduce do not return to the root."""
    if operation not in ("broadcast", "reduce"):
        return np.ones(len(group.members), bool)
    source = group.orders(channel)
    kept: NDArray[np.bool_] = (np.roll(source, -1) if operation == "broadcast" else source) != root
    return kept


def _routed(group: RankGroup, channel: int, connection: int, rooted: str, root: int) -> RoutedHops:
    """The ring of a channel. `rooted`: broadcast, reduce or nothing."""
    key = ("ring", channel, connection, rooted, root if rooted else 0)
    found = group.routed.get(key)
    if found is None:
        source = group.orders(channel)
        domain = np.repeat(np.arange(len(group.domains)), group.sizes)
        crosses = np.diff(domain, append=len(group.domains)) > 0 if group.rails else np.zeros(len(source), bool)
        hops, leg = _hops(group, source, np.roll(source, -1), domain, np.roll(domain, -1), crosses, channel, connection)
        kept = _kept(group, channel, rooted, root)[leg]
        found = group.routed[key] = route_hops(group.topology, Hops(*(column[kept] for column in hops)))
    return found


def _hops(
    group: RankGroup,
    source: Int64s,
    target: Int64s,
    here: Int64s,
    there: Int64s,
    crosses: NDArray[np.bool_],
    channel: int,
    connection: int,
) -> tuple[Hops, NDArray[np.intp]]:
    """The hops of legs from members of domains `here` to members of domains `there`, and for each hop its leg. A leg
    between domains goes over GPU links to the GPU nearest to the NIC (PXN), and from there over the network."""
    if not crosses.any():
        return Hops.inside(source, target, channel), np.arange(len(source))
    rail, nic = group.rail_ranks[:, channel], group.rail_nics[:, channel]
    relayed = crosses & (source != rail[here]) & (group.topology.cluster.gpu_link != "pcie")
    leg = np.repeat(np.arange(len(source)), 1 + relayed)
    is_relay = np.append(leg[1:] == leg[:-1], False)
    is_network = crosses[leg] & ~is_relay
    begin = np.where(is_network & relayed[leg], rail[here[leg]], source[leg])
    end = np.where(is_relay, rail[here[leg]], target[leg])
    hops = Hops(
        begin,
        end,
        np.where(is_network, nic[here[leg]], -1),
        np.where(is_network, nic[there[leg]], -1),
        np.where(is_network, connection, np.where(is_relay, 0, channel)),
    )
    return hops, leg


def pat_schedule(group: RankGroup) -> CollectiveSchedule:
    """Parallel aggregated trees with one GPU per node: data moves by powers of two, in logarithmically many steps.
    All-gather and reduce-scatter mirror each other."""
    members, rails = len(group.members), len(group.rails[0])
    flows = []
    depth = int(np.ceil(np.log2(members)))
    farthest = 0
    source, place = np.array(group.members, np.int64), np.arange(members)
    for channel in range(rails):
        parts: list[Hops] = []
        loads: list[NDArray[np.float64]] = []
        distance, carried = 1, 1
        while distance < members:
            pieces = min(carried, members - carried)
            other = (place + distance) % members
            hops, _ = _hops(group, source, source[other], place, other, np.ones(members, bool), channel, channel)
            parts.append(hops)
            loads.append(np.full(len(hops.source), pieces / members / rails))
            distance, carried = 2 * distance, carried + pieces
        routed = group.routed.get(("pat", channel))
        if routed is None:
            routed = group.routed["pat", channel] = route_hops(group.topology, joined_hops(*parts))
        flows.append(routed.flow(np.concatenate(loads)))
        farthest = max(farthest, routed.farthest_ns(slice(0, len(routed.hop))))
    return CollectiveSchedule(tuple(flows), 0, depth, depth * farthest, local_share=1.0 / members)
