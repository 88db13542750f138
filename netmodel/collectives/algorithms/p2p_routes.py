"""Which links messages load: every one over its own path, all at the same time, over several where GPUs have several
NICs or switches hash connections.

In: a `RankGroup` and its `Messages`. Out: `Routed`: a flow per message, and of very many messages a flow per sender.
With these, what the analytic level asks is known without the flows: how much each link carries, and what limits a
sender. So a million messages are routed as the few thousand legs that they consist of, and their flows are made when
the flow level looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netmodel.collectives.algorithms.group import RankGroup, flow_over, hashed_connections, latencies, rail_slot
from netmodel.collectives.plan import Flow, LateFlows
from netmodel.topology import Topology

MOST_FLOWS = 4096  # beyond, the messages of one sender are one flow
_SLAB = 1 << 16  # messages that are routed together
_ALL = slice(None)


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

    def by_sender(self) -> Messages:
        """The same, those of one sender after those of another."""
        if (self.source[1:] >= self.source[:-1]).all():
            return self
        order = np.argsort(self.source, kind="stable")
        return Messages(self.source[order], self.target[order], self.load[order], self.exchange)


@dataclass(frozen=True)
class Routed:
    """Messages and the flows they make."""

    flows: Sequence[Flow]
    link_loads: NDArray[np.float64] | None  # of all flows together; None: they are few, and add up quickly
    inside: NDArray[np.float64]  # of each flow: the largest load among its messages that stay in a domain, 0 if none do
    across: NDArray[np.float64]  # and among those that do not
    stripes: int  # NICs that a message between domains is spread over
    most_inside: int  # messages of the busiest sender
    most_across: int
    lone: bool  # no sender has two
    farthest_ns: float  # of cables and switches


class _Legs(NamedTuple):
    """Parts of messages' ways: from one GPU to another, by way of a NIC where they leave the domain."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    nic: NDArray[np.int64]  # -1: the nearest
    message: NDArray[np.int64] | None  # which one each belongs to; None: there is one for each message
    stripe: int


def route_messages(group: RankGroup, messages: Messages, *, pxn: bool) -> Routed:
    """Every message over its own path, all at the same time; over several where GPUs have several NICs."""
    messages = messages.by_sender()
    topology = group.topology
    gpus_per_domain = topology.cluster.gpus_per_node * topology.cluster.gpu_link_nodes
    domain_of = np.arange(topology.gpus) // gpus_per_domain
    inside = domain_of[messages.source] == domain_of[messages.target]
    ways = _Ways(group, messages, inside, domain_of, pxn)
    senders = np.flatnonzero(np.diff(messages.source, prepend=-1))  # where the messages of each begin
    if len(messages.source) <= MOST_FLOWS:
        first = np.arange(len(messages.source))
        rows = ways.paths()
        flows: Sequence[Flow] = _flow_each(np.concatenate(rows, axis=1), ways.loads)
        link_loads, farthest = None, int(latencies(topology, rows[0]).max(initial=0))
    else:
        first = senders
        flows = LateFlows(len(senders), lambda: _flow_of_each_sender(ways, senders))
        link_loads, farthest = _loads_of_links(ways)
    counts = np.diff(np.append(senders, len(inside)))
    stay = np.add.reduceat(inside, senders, dtype=np.int64)
    return Routed(
        flows,
        link_loads,
        np.maximum.reduceat(np.where(inside, messages.load, 0.0), first),
        np.maximum.reduceat(np.where(inside, 0.0, messages.load), first),
        ways.nics_each,
        int(stay.max()),
        int((counts - stay).max()),
        not messages.exchange and int(counts.max()) <= 1,
        float(farthest),
    )


class _Ways:
    """How the messages of a group travel."""

    def __init__(
        self,
        group: RankGroup,
        messages: Messages,
        inside: NDArray[np.bool_],  # of each message: it stays in a domain
        domain_of: NDArray[np.int64],  # [rank]
        pxn: bool,
    ) -> None:
        self.topology = group.topology
        self.messages = messages
        self._members = group.members
        self._inside = inside
        self._all_inside = bool(inside.all())
        self._domain_of = domain_of
        self._pxn = pxn
        self._near = {rank: group.topology.nics_of(rank) for rank in group.members}
        self.nics_each = 1 if self._all_inside else min(len(nics) for nics in self._near.values())
        # Where switches hash connections, each takes a way of its own; of very many messages one stands for the others.
        many = len(messages.source) > MOST_FLOWS
        connections = 1 if self._all_inside or many else hashed_connections(group.topology)
        self.stripes = self.nics_each * connections
        self.loads = messages.load / self.stripes  # of every message on each of its ways

    def legs(self, some: slice = _ALL) -> Iterator[_Legs]:
        """Of every stripe: legs of all messages from their sources, and of those that are relayed the second one."""
        source, target, inside = self.messages.source[some], self.messages.target[some], self._inside[some]
        for stripe in range(self.stripes):
            proxies, nics = source, np.full(len(source), -1, np.int64)
            if not self._all_inside and self.topology.cluster.gpu_link != "pcie":
                proxies, nics = self._rails[stripe % self.nics_each].proxies(source, target, inside, pxn=self._pxn)
            relayed = np.flatnonzero(proxies != source)
            ends = target.copy()
            ends[relayed] = proxies[relayed]
            yield _Legs(source, ends, nics, None, stripe)
            if len(relayed):
                yield _Legs(proxies[relayed], target[relayed], nics[relayed], relayed, stripe)

    @cached_property
    def _rails(self) -> list[_Rails]:
        """Of every NIC that a member has."""
        return [self._make_rails(place) for place in range(self.nics_each)]

    def paths(self) -> list[NDArray[np.int32]]:
        """Of each of `legs`, a row of links for every message, -1 after its end. All are looked up together."""
        parts = list(self.legs())
        source, target, nic = (np.concatenate(columns) for columns in zip(*(part[:3] for part in parts), strict=True))
        ends = np.cumsum([len(part.source) for part in parts])
        flow = np.repeat([part.stripe for part in parts], np.diff(ends, prepend=0))
        found = self.topology.paths(source, target, source_nic=nic, target_nic=nic, flow=flow)
        return [self._of_messages(part, rows) for part, rows in zip(parts, np.split(found, ends[:-1]), strict=True)]

    def _of_messages(self, part: _Legs, found: NDArray[np.int32]) -> NDArray[np.int32]:
        if part.message is None:
            return found
        rows = np.full((len(self.loads), found.shape[1]), -1, np.int32)
        rows[part.message] = found
        return rows

    def slabs(self) -> Iterator[slice]:
        """Messages of some domains after those of others, as many at a time as a processor's cache holds."""
        domains = self._domain_of[self.messages.source]
        starts = np.flatnonzero(np.diff(domains, prepend=-1)).tolist()
        begin = 0
        for start, end in zip(starts, [*starts[1:], len(domains)], strict=True):
            if end - begin > _SLAB and start > begin:
                yield slice(begin, start)
                begin = start
        yield slice(begin, len(domains))

    def _make_rails(self, stripe: int) -> _Rails:
        nic_of, slot_of = (np.zeros(self.topology.gpus, np.int64) for _ in range(2))
        for rank in self._members:
            nic_of[rank] = self._near[rank][stripe]
            slot_of[rank] = rail_slot(self.topology, rank, self._near[rank][stripe])
        member_on = np.full((self._domain_of.max() + 1, slot_of.max() + 1), -1, np.int64)
        backwards = np.array(self._members[::-1])
        member_on[self._domain_of[backwards], slot_of[backwards]] = backwards
        return _Rails(nic_of, slot_of, member_on[self._domain_of])


@dataclass(frozen=True)
class _Rails:
    """Where members' NICs are."""

    nic_of: NDArray[np.int64]  # [rank]
    slot_of: NDArray[np.int64]  # [rank] -> the rail of that NIC
    proxy_of: NDArray[np.int64]  # [rank, rail] -> the first member of its domain on it, or -1

    def proxies(
        self, source: NDArray[np.int64], target: NDArray[np.int64], inside: NDArray[np.bool_], *, pxn: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """PXN: a message to another domain goes over GPU links to the member on the rail of its target, and leaves
        through that member's NIC. Without such a member it leaves from where it is, through the nearest NIC."""
        slot = self.slot_of[target]
        same = self.slot_of[source] == slot
        through = ~inside & same
        proxies = source
        if pxn:
            proxy = self.proxy_of[source, slot]
            relayed = ~inside & ~same & (proxy >= 0)
            proxies = np.where(relayed, proxy, source)
            through |= relayed
        return proxies, np.where(through, self.nic_of[target], -1)


def _loads_of_links(ways: _Ways) -> tuple[NDArray[np.float64], int]:
    """What messages put on each link together, and ns of cables and switches to the farthest end of a first leg. Legs
    that many messages have in common, as those from a relaying GPU to a target, are routed once."""
    topology = ways.topology
    by_link = np.zeros(len(topology.rate) + 1)  # behind a place for what ends a row
    latency = np.append(0, topology.latency)
    farthest = 0
    for slab in ways.slabs():
        for legs in ways.legs(slab):
            loads = ways.loads[slab] if legs.message is None else ways.loads[slab][legs.message]
            source, target, nic, load = _distinct(topology, legs, loads)
            for pairs, rows in topology.path_parts(source, target, nic, nic, legs.stripe):
                links = rows.astype(np.intp) + 1
                by_link += np.bincount(links.ravel(), np.repeat(load[pairs], links.shape[1]), len(by_link))
                if legs.stripe == 0 and legs.message is None:
                    farthest = max(farthest, int(latency[links].sum(axis=1).max()))
    return by_link[1:], farthest


def _distinct(
    topology: Topology, legs: _Legs, loads: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Source, target and NIC of legs that differ, and what they carry together."""
    nics = topology.cluster.nics_per_node + 1
    first, last = int(legs.source.min()), int(legs.source.max())
    key = ((legs.source - first) * topology.gpus + legs.target) * nics + legs.nic + 1
    most = (last - first + 1) * topology.gpus * nics
    if most <= 64 * len(key):  # a table is quicker than sorting
        total = np.bincount(key, loads, most)
        keys = np.flatnonzero(total > 0)
        total = total[keys]
    else:
        keys, inverse = np.unique(key, return_inverse=True)
        total = np.bincount(inverse, loads)
    pairs, nic = np.divmod(keys, nics)
    source, target = np.divmod(pairs, topology.gpus)
    return source + first, target, nic - 1, total


def _flow_of_each_sender(ways: _Ways, senders: NDArray[np.int64]) -> list[Flow]:
    paths = np.concatenate(ways.paths(), axis=1)
    ends = [*senders[1:].tolist(), len(paths)]
    return [flow_over(paths[i:j], ways.loads[i:j]) for i, j in zip(senders.tolist(), ends, strict=True)]


def _flow_each(paths: NDArray[np.int32], loads: NDArray[np.float64]) -> tuple[Flow, ...]:
    """A flow for every row; those that pass no link twice, which most are, all at once."""
    ordered = np.sort(paths, axis=1)
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1).tolist()
    begin = (ordered < 0).sum(axis=1).tolist()
    width = ordered.shape[1]
    return tuple(
        flow_over(paths[i : i + 1], loads[i : i + 1]) if twice else Flow(ordered[i, at:], np.full(width - at, load))
        for i, (twice, at, load) in enumerate(zip(again, begin, loads.tolist(), strict=True))
    )
