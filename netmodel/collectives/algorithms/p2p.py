"""Messages: send and receive, groups of them, and all-to-all, which NCCL carries out as messages between all pairs.

In: members. Out: the `Messages` between them; and of messages that are routed (message_routes.py) a draft, with so many
channels for each of them.
"""

from __future__ import annotations

import numpy as np

from netmodel.collectives.algorithms.common import Draft, RateLimit
from netmodel.collectives.algorithms.p2p_routes import Messages, Routed

LL_LARGEST = 16 * 1024  # NCCL_P2P_LL_THRESHOLD: larger messages use Simple
# Seen in measurements of NCCL 2.29 on H100: a message has the channels that all peers share between them, and twice as
# many whenever its parts would be larger than 16 MiB.
CHANNELS = 32
BYTES_PER_CHANNEL = 16 * 2**20
_LONE_LAG = 0.25  # of the lag of exchanges: single messages between GPUs of a node have little (H100, nccl-tests)


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


def draft_messages(routed: Routed, *, channels: int, net_channels: int) -> Draft:
    """Messages that use so many channels each."""
    with np.errstate(divide="ignore"):  # no such message: no limit
        inside, across = channels / routed.inside, routed.stripes * net_channels / routed.across
    crosses = (routed.across > 0).tolist()
    limits = tuple(RateLimit(*limit) for limit in zip(crosses, np.minimum(inside, across).tolist(), strict=True))
    # Messages of one sender start one after the other, and the farthest arrives last.
    return Draft(
        routed.flows,
        routed.most_inside,
        routed.most_across,
        routed.farthest_ns,
        lag_share=_LONE_LAG if routed.lone and not routed.most_across else 1.0,
        limits=limits,
        link_loads=routed.link_loads,
    )
