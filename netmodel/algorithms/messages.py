"""Messages: send and receive, groups of them, and all-to-all, which NCCL carries out as messages between all pairs.

In: a `Group` and which pairs exchange how much. Out: a flow per message, in large groups a flow per sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netmodel.algorithms.common import Draft, Limit
from netmodel.algorithms.group import Group, flow_over, hashed_connections, latencies, rail_slot
from netmodel.plan import Flow

LL_LARGEST = 16 * 1024  # NCCL_P2P_LL_THRESHOLD: larger messages use Simple
# Seen in measurements of NCCL 2.29 on H100: a message has the channels that all peers share between them, and twice as
# many whenever its parts would be larger than 16 MiB.
CHANNELS = 32
BYTES_PER_CHANNEL = 16 * 2**20
_LONE_LAG = 0.25  # of the lag of exchanges: single messages between GPUs of a node have little (H100, nccl-tests)
MOST_FLOWS = 4096  # beyond, the messages of one sender are one flow


@dataclass(frozen=True)
class Messages:
    """Pairs of ranks, and the bytes of each message per byte of the collective's size."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    load: NDArray[np.float64]
    exchange: bool = False  # everyone with everyone

    @property
    def largest(self) -> float:
        return float(self.load.max(initial=0.0))


def all_pairs(members: tuple[int, ...]) -> Messages:
    """An all-to-all with equal parts."""
    ranks, count = np.array(members, np.int64), len(members)
    source, target = np.repeat(ranks, count), np.tile(ranks, count)
    others = source != target
    return Messages(source[others], target[others], np.full(int(others.sum()), 1.0 / count), exchange=True)


def neighbours(members: tuple[int, ...]) -> Messages:
    """As nccl-tests' sendrecv_perf: everyone sends the whole buffer to the next member."""
    ranks = np.array(members, np.int64)
    if len(members) < 2:
        return Messages(ranks[:0], ranks[:0], np.empty(0))
    return Messages(ranks, np.roll(ranks, -1), np.ones(len(ranks)))


def channels_per_peer(members: int, message: float) -> int:
    """Channels of one message inside a domain: a power of two."""
    channels = 1 << (max(1, CHANNELS // members).bit_length() - 1)
    while channels < CHANNELS and channels * BYTES_PER_CHANNEL < message:
        channels *= 2
    return channels


def network_channels_per_peer(members: int, domains: int) -> int:
    """Channels of one message between domains. Two domains alone reach the rate of their NICs with one message."""
    if domains == 2:
        return 8
    return 2 if members <= 64 else 1


@dataclass(frozen=True)
class Routed:
    """Messages, sorted by sender, and the flows they make: flow i is of the messages from first[i] on."""

    messages: Messages
    inside: NDArray[np.bool_]  # of each message: it stays in a domain
    stripes: int  # NICs that a message between domains is spread over
    flows: tuple[Flow, ...]
    first: NDArray[np.int64]
    farthest_ns: float  # of cables and switches


def route_messages(group: Group, messages: Messages, *, pxn: bool) -> Routed:
    """Every message over its own path, all at the same time; over several where GPUs have several NICs."""
    order = np.argsort(messages.source, kind="stable")
    messages = Messages(messages.source[order], messages.target[order], messages.load[order], messages.exchange)
    topology = group.topology
    gpus_per_domain = topology.cluster.gpus_per_node * topology.cluster.gpu_link_nodes
    inside = messages.source // gpus_per_domain == messages.target // gpus_per_domain
    near = {rank: topology.nics_of(rank) for rank in group.members}
    nics_each = 1 if inside.all() else min(len(nics) for nics in near.values())
    # Where switches hash connections, each takes a way of its own; of very many messages one stands for the others.
    connections = 1 if inside.all() or len(messages.source) > MOST_FLOWS else hashed_connections(topology)
    stripes = nics_each * connections
    parts = []
    for stripe in range(stripes):
        proxies, nics = _proxies(group, messages, inside, near, stripe % nics_each, pxn)
        relayed = proxies != messages.source
        ends = np.where(relayed, proxies, messages.target)
        parts.append(topology.paths(messages.source, ends, source_nic=nics, target_nic=nics, flow=stripe))
        if relayed.any():
            here = nics[relayed]
            rows = topology.paths(
                proxies[relayed], messages.target[relayed], source_nic=here, target_nic=here, flow=stripe
            )
            parts.append(np.full((len(messages.source), rows.shape[1]), -1, np.int32))
            parts[-1][relayed] = rows
    paths = np.concatenate(parts, axis=1)
    loads = messages.load / stripes
    if len(paths) <= MOST_FLOWS:
        first, flows = np.arange(len(paths)), _flow_each(paths, loads)
    else:
        first = np.unique(messages.source, return_index=True)[1]
        ends_of = [*first[1:].tolist(), len(paths)]
        flows = [flow_over(paths[i:j], loads[i:j]) for i, j in zip(first.tolist(), ends_of, strict=True)]
    farthest = float(latencies(topology, paths[:, : parts[0].shape[1]]).max())
    return Routed(messages, inside, nics_each, tuple(flows), first, farthest)


def _flow_each(paths: NDArray[np.int32], loads: NDArray[np.float64]) -> list[Flow]:
    """A flow for every row; those that pass no link twice, which most are, all at once."""
    ordered = np.sort(paths, axis=1)
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1).tolist()
    begin = (ordered < 0).sum(axis=1).tolist()
    width = ordered.shape[1]
    return [
        flow_over(paths[i : i + 1], loads[i : i + 1]) if twice else Flow(ordered[i, at:], np.full(width - at, load))
        for i, (twice, at, load) in enumerate(zip(again, begin, loads.tolist(), strict=True))
    ]


def draft_messages(routed: Routed, *, channels: int, net_channels: int) -> Draft:
    """Messages that use so many channels each."""
    inside, source = routed.inside, routed.messages.source
    used = np.where(inside, channels, routed.stripes * net_channels) / np.maximum(routed.messages.load, 1e-300)
    crosses = np.logical_or.reduceat(~inside, routed.first).tolist()
    least = np.minimum.reduceat(used, routed.first).tolist()
    limits = tuple(Limit(network, count) for network, count in zip(crosses, least, strict=True))
    lone = not routed.messages.exchange and _most(source) <= 1
    # Messages of one sender start one after the other, and the farthest arrives last.
    return Draft(
        routed.flows,
        _most(source[inside]),
        _most(source[~inside]),
        routed.farthest_ns,
        lag_share=_LONE_LAG if lone and inside.all() else 1.0,
        limits=limits,
    )


def _most(senders: NDArray[np.int64]) -> int:
    """Messages of the busiest sender."""
    return int(np.unique(senders, return_counts=True)[1].max(initial=0))


def _proxies(
    group: Group,
    messages: Messages,
    inside: NDArray[np.bool_],
    near: Mapping[int, tuple[int, ...]],
    stripe: int,
    pxn: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """PXN: a message to another domain goes over GPU links to the member on the rail of its target, and leaves through
    that member's NIC. Without such a member it leaves from where it is, through the nearest NIC."""
    proxies, nics = messages.source.copy(), np.full(len(messages.source), -1, np.int64)
    if group.topology.cluster.gpu_link == "pcie" or inside.all():
        return proxies, nics
    # [rank] -> its NIC, its rail, its domain; [domain, rail] -> the first member on it, or -1.
    topology = group.topology
    nic_of, slot_of, domain_of = (np.zeros(topology.gpus, np.int64) for _ in range(3))
    for rank in group.members:
        nic_of[rank], domain_of[rank] = near[rank][stripe], topology.domain_of(rank)
        slot_of[rank] = rail_slot(topology, rank, near[rank][stripe])
    on_rail = np.full((domain_of.max() + 1, slot_of.max() + 1), -1, np.int64)
    backwards = np.array(group.members[::-1])
    on_rail[domain_of[backwards], slot_of[backwards]] = backwards
    wanted, slot = nic_of[messages.target], slot_of[messages.target]
    same = ~inside & (slot_of[messages.source] == slot)
    nics[same] = wanted[same]
    if pxn:
        proxy = on_rail[domain_of[messages.source], slot]
        through = ~inside & ~same & (proxy >= 0)
        proxies[through], nics[through] = proxy[through], wanted[through]
    return proxies, nics
