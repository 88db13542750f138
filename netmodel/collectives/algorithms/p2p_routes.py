"""The links that P2P transfers load. All transfers run at the same time, each over its own path, or over several paths
where GPUs have several NICs or switches hash connections.

In: a `RankGroup` and its `P2PTransfers`. Out: `RoutedTransfers`: one flow per transfer, or one per sender when there
are very many. The analytic level needs only the load of each link and the limits of a sender, which are computed
without the flows: a million transfers are routed as the few thousand legs that they share. The flow level makes the
flows when it first reads them.
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
from netmodel.topology.links import LinkKind

MOST_FLOWS = 4096  # with more transfers, those of one sender are one flow
_SLAB = 1 << 16  # transfers that are routed in one pass
_LONE_TRANSFERS = 1024  # that are routed in one pass, each with all its connections
_ALL = slice(None)


@dataclass(frozen=True)
class P2PTransfers:
    """Pairs of ranks, and the bytes of each transfer per byte of the collective's size."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    load: NDArray[np.float64]
    exchange: bool = False  # every member sends to every other

    @property
    def largest(self) -> float:
        return float(self.load.max(initial=0.0))

    def by_sender(self) -> P2PTransfers:
        """The same transfers, ordered by sender."""
        if (self.source[1:] >= self.source[:-1]).all():
            return self
        order = np.argsort(self.source, kind="stable")
        return P2PTransfers(self.source[order], self.target[order], self.load[order], self.exchange)


@dataclass(frozen=True)
class RoutedTransfers:
    """Transfers as flows over links."""

    flows: Sequence[Flow]
    link_loads: NDArray[np.float64] | None  # sum over all flows; None: there are few, and the caller adds them up
    inside: NDArray[np.float64]  # per flow: the largest load of a transfer within a domain, 0 if there is none
    across: NDArray[np.float64]  # per flow: the largest load of a transfer between domains, 0 if there is none
    stripes: int  # number of NICs that carry one transfer between domains
    most_inside: int  # number of transfers of the busiest sender
    most_across: int
    lone: bool  # every sender has one transfer at most
    farthest_ns: float  # latency of cables and switches on the longest path


class _Legs(NamedTuple):
    """Legs of transfers: each from one GPU to another, through a NIC if it leaves the domain."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    nic: NDArray[np.int64]  # -1: the nearest
    transfer: NDArray[np.int64] | None  # the transfer that each leg belongs to; None: leg i belongs to transfer i
    stripe: int


def route_p2p(group: RankGroup, transfers: P2PTransfers, *, pxn: bool) -> RoutedTransfers:
    """Route all transfers at the same time, each over its own path, or over several where GPUs have several NICs."""
    transfers = transfers.by_sender()
    topology = group.topology
    domain_of = _domains(topology)
    inside = domain_of[transfers.source] == domain_of[transfers.target]
    ways = _Ways(topology, group.members, transfers, inside, domain_of, pxn)
    senders = np.flatnonzero(np.diff(transfers.source, prepend=-1))  # index of each sender's first transfer
    if len(transfers.source) <= MOST_FLOWS:
        first = np.arange(len(transfers.source))
        rows = ways.paths()
        flows: Sequence[Flow] = _flow_each(np.concatenate(rows, axis=1), ways.loads)
        link_loads, farthest = None, int(latencies(topology, rows[0]).max(initial=0))
    else:
        first = senders
        flows = LateFlows(len(senders), lambda: _flow_of_each_sender(ways, senders))
        link_loads, farthest = _loads_of_links(ways)
    counts = np.diff(np.append(senders, len(inside)))
    stay = np.add.reduceat(inside, senders, dtype=np.int64)
    return RoutedTransfers(
        flows,
        link_loads,
        np.maximum.reduceat(np.where(inside, transfers.load, 0.0), first),
        np.maximum.reduceat(np.where(inside, 0.0, transfers.load), first),
        ways.nics_each,
        int(stay.max()),
        int((counts - stay).max()),
        not transfers.exchange and int(counts.max()) <= 1,
        float(farthest),
    )


def lone_transfer_costs(
    topology: Topology, source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What the time of a transfer between two GPUs depends on if it has the network to itself: one row per pair. Pairs
    with equal rows have equal plans. No GPU relays such a transfer, because no other is a member."""
    domain_of = _domains(topology)
    inside = domain_of[source] == domain_of[target]
    nics = np.where(inside, 0, np.minimum(topology.routes.nic_counts[source], topology.routes.nic_counts[target]))
    costs = np.zeros((len(source), 2 + len(LinkKind)))
    costs[:, 0] = nics
    for count in np.unique(nics).tolist():
        of_count = np.flatnonzero(nics == count)
        for begin in range(0, len(of_count), _LONE_TRANSFERS):
            pairs = of_count[begin : begin + _LONE_TRANSFERS]
            transfers = P2PTransfers(source[pairs], target[pairs], np.ones(len(pairs)))
            members = tuple(np.unique((transfers.source, transfers.target)).tolist())
            ways = _Ways(topology, members, transfers, inside[pairs], domain_of, False)
            rows = ways.paths()
            costs[pairs, 1] = latencies(topology, rows[0])
            costs[pairs, 2:] = _busiest_links(topology, np.concatenate(rows, axis=1), ways.loads)
    return costs


def _busiest_links(topology: Topology, paths: NDArray[np.int32], loads: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row and LinkKind: ns per byte on its busiest link, which it may pass several times."""
    transfer, column = np.nonzero(paths >= 0)
    keys, times = np.unique(transfer * len(topology.rate) + paths[transfer, column], return_counts=True)
    transfer, link = np.divmod(keys, len(topology.rate))
    by_kind = np.zeros((len(paths), len(LinkKind)))
    np.maximum.at(by_kind, (transfer, topology.kind[link]), 1e9 * times * loads[transfer] / topology.rate[link])
    return by_kind


def _domains(topology: Topology) -> NDArray[np.int64]:
    """The domain of each GPU."""
    return np.arange(topology.gpus) // (topology.cluster.gpus_per_node * topology.cluster.gpu_link_nodes)


class _Ways:
    """The paths of a group's transfers."""

    def __init__(
        self,
        topology: Topology,
        members: tuple[int, ...],
        transfers: P2PTransfers,
        inside: NDArray[np.bool_],  # per transfer: both ends are in one domain
        domain_of: NDArray[np.int64],  # [rank]
        pxn: bool,
    ) -> None:
        self.topology = topology
        self.transfers = transfers
        self._members = members
        self._inside = inside
        self._all_inside = bool(inside.all())
        self._domain_of = domain_of
        self._pxn = pxn
        self._near = {rank: topology.nics_of(rank) for rank in members}
        self.nics_each = 1 if self._all_inside else min(len(nics) for nics in self._near.values())
        # Where switches hash connections, each connection takes its own path; with very many transfers, one connection
        # stands for all.
        many = len(transfers.source) > MOST_FLOWS
        connections = 1 if self._all_inside or many else hashed_connections(topology)
        self.stripes = self.nics_each * connections
        self.loads = transfers.load / self.stripes  # per transfer, on each of its paths

    def legs(self, some: slice = _ALL) -> Iterator[_Legs]:
        """The legs of every stripe: the first leg of all transfers, then the second leg of relayed ones."""
        source, target, inside = self.transfers.source[some], self.transfers.target[some], self._inside[some]
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
        """The rails of every NIC that a member has."""
        return [self._make_rails(place) for place in range(self.nics_each)]

    def paths(self) -> list[NDArray[np.int32]]:
        """For each of `legs`, one row of links per transfer, -1 after its end. All rows are looked up in one call."""
        parts = list(self.legs())
        source, target, nic = (np.concatenate(columns) for columns in zip(*(part[:3] for part in parts), strict=True))
        ends = np.cumsum([len(part.source) for part in parts])
        flow = np.repeat([part.stripe for part in parts], np.diff(ends, prepend=0))
        found = self.topology.paths(source, target, source_nic=nic, target_nic=nic, flow=flow)
        return [self._of_messages(part, rows) for part, rows in zip(parts, np.split(found, ends[:-1]), strict=True)]

    def _of_messages(self, part: _Legs, found: NDArray[np.int32]) -> NDArray[np.int32]:
        if part.transfer is None:
            return found
        rows = np.full((len(self.loads), found.shape[1]), -1, np.int32)
        rows[part.transfer] = found
        return rows

    def slabs(self) -> Iterator[slice]:
        """The transfers domain by domain, in slabs that fit into the processor's cache."""
        domains = self._domain_of[self.transfers.source]
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
    """The rails of the members' NICs."""

    nic_of: NDArray[np.int64]  # [rank]
    slot_of: NDArray[np.int64]  # [rank] -> the rail of that NIC
    proxy_of: NDArray[np.int64]  # [rank, rail] -> the first member of its domain on it, or -1

    def proxies(
        self, source: NDArray[np.int64], target: NDArray[np.int64], inside: NDArray[np.bool_], *, pxn: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """PXN: a transfer to another domain goes over GPU links to the member on the rail of its target, and leaves
        through that member's NIC. Without such a member it leaves through the sender's nearest NIC."""
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
    """The load of each link, summed over all transfers, and the longest latency of a first leg in ns. Legs that many
    transfers share, such as those from a relaying GPU to a target, are routed once."""
    topology = ways.topology
    by_link = np.zeros(len(topology.rate) + 1)  # one more element, for the -1 that ends a row
    latency = np.append(0, topology.latency)
    farthest = 0
    for slab in ways.slabs():
        for legs in ways.legs(slab):
            loads = ways.loads[slab] if legs.transfer is None else ways.loads[slab][legs.transfer]
            source, target, nic, load = _distinct(topology, legs, loads)
            for pairs, rows in topology.path_parts(source, target, nic, nic, legs.stripe):
                links = rows.astype(np.intp) + 1
                by_link += np.bincount(links.ravel(), np.repeat(load[pairs], links.shape[1]), len(by_link))
                if legs.stripe == 0 and legs.transfer is None:
                    farthest = max(farthest, int(latency[links].sum(axis=1).max()))
    return by_link[1:], farthest


def _distinct(
    topology: Topology, legs: _Legs, loads: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Source, target and NIC of distinct legs, and the sum of their loads."""
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
    """One flow per row. Rows that pass no link twice, nearly all, are handled in one array operation."""
    ordered = np.sort(paths, axis=1)
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1).tolist()
    begin = (ordered < 0).sum(axis=1).tolist()
    width = ordered.shape[1]
    return tuple(
        flow_over(paths[i : i + 1], loads[i : i + 1]) if twice else Flow(ordered[i, at:], np.full(width - at, load))
        for i, (twice, at, load) in enumerate(zip(again, begin, loads.tolist(), strict=True))
    )
