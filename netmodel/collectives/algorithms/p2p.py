"""Point-to-point: send/recv, groups of them, and all-to-all, which NCCL carries out as send/recv between all pairs.

In: members. Out: the `P2PTransfers` between them, and the schedule of transfers that p2p_routes.py has routed.
"""

from __future__ import annotations

import numpy as np

from netmodel.collectives.algorithms.common import CollectiveSchedule, RateLimit
from netmodel.collectives.algorithms.p2p_routes import P2PTransfers, RoutedTransfers

LL_LARGEST = 16 * 1024  # NCCL_P2P_LL_THRESHOLD: larger transfers use Simple
# Measured with NCCL 2.29 on H100: all peers share the channels evenly, and a transfer doubles its channels as long as
# one channel would carry more than 16 MiB.
CHANNELS = 32
BYTES_PER_CHANNEL = 16 * 2**20
_LONE_LAG = 0.25  # single transfers within a node have this share of an all-to-all's lag (H100, nccl-tests)


def all_pairs(members: tuple[int, ...]) -> P2PTransfers:
    """An all-to-all with equal parts."""
    ranks, count = np.array(members, np.int64), len(members)
    source, target = np.repeat(ranks, count), np.tile(ranks, count)
    others = source != target
    return P2PTransfers(source[others], target[others], np.full(int(others.sum()), 1.0 / count), exchange=True)


def neighbours(members: tuple[int, ...]) -> P2PTransfers:
    """The pattern of nccl-tests' sendrecv_perf: every member sends the whole buffer to the next one."""
    ranks = np.array(members, np.int64)
    if len(members) < 2:
        return P2PTransfers(ranks[:0], ranks[:0], np.empty(0))
    return P2PTransfers(ranks, np.roll(ranks, -1), np.ones(len(ranks)))


def channels_per_peer(members: int, size: float) -> int:
    """Channels of one transfer inside a domain: a power of two."""
    channels = 1 << (max(1, CHANNELS // members).bit_length() - 1)
    while channels < CHANNELS and channels * BYTES_PER_CHANNEL < size:
        channels *= 2
    return channels


def network_channels_per_peer(members: int, domains: int) -> int:
    """Channels of one transfer between domains. Two domains alone reach the rate of their NICs with one transfer."""
    if domains == 2:
        return 8
    return 2 if members <= 64 else 1


def p2p_schedule(routed: RoutedTransfers, *, channels: int, net_channels: int) -> CollectiveSchedule:
    """The schedule of transfers that use `channels` channels each, `net_channels` between domains."""
    with np.errstate(divide="ignore"):  # a flow without such a transfer has no limit
        inside, across = channels / routed.inside, routed.stripes * net_channels / routed.across
    crosses = (routed.across > 0).tolist()
    limits = tuple(RateLimit(*limit) for limit in zip(crosses, np.minimum(inside, across).tolist(), strict=True))
    # The transfers of one sender start one after the other, and the farthest arrives last.
    return CollectiveSchedule(
        routed.flows,
        routed.most_inside,
        routed.most_across,
        routed.farthest_ns,
        lag_share=_LONE_LAG if routed.lone and not routed.most_across else 1.0,
        limits=limits,
        link_loads=routed.link_loads,
    )
