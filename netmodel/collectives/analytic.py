"""How long a collective takes that has the network to itself.

In: a `Topology`, NCCL's settings, and collectives. Out: an `CollectiveEstimate` each. Whatever depends on the group
alone is worked out once: ranges of sizes with their plans; after that an answer is a look-up and a few multiplications.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netmodel.collectives import tuner
from netmodel.collectives.algorithms import (
    Draft,
    RankGroup,
    Routed,
    draft_collective,
    draft_messages,
    make_group,
    make_plan,
    p2p,
    route_messages,
)
from netmodel.collectives.algorithms.common import with_fewer_channels
from netmodel.collectives.algorithms.p2p_routes import Messages
from netmodel.collectives.collective import OPERATIONS, Collective, CollectiveEstimate
from netmodel.collectives.nccl_settings import NcclSettings
from netmodel.collectives.plan import Plan
from netmodel.topology import Topology

_MOST_RECENT = 4096


@dataclass(frozen=True)
class _Ranges:
    """Plans by size: plan i from starts[i] on."""

    starts: Sequence[int]
    plans: Sequence[Plan]
    drafts: Sequence[Draft]  # what each plan was made of

    def place(self, size: int) -> int:
        return bisect_right(self.starts, size) - 1


class AnalyticNetwork:
    """A cluster's network that answers one collective at a time."""

    def __init__(self, topology: Topology, settings: NcclSettings | None = None) -> None:
        self.topology = topology
        self.settings = settings or NcclSettings()
        self.parameters = topology.cluster.parameters
        self._groups: dict[tuple[int, ...], RankGroup] = {}
        self._ranges: dict[object, _Ranges] = {}
        self._tuned: dict[object, Sequence[tuple[int, tuner.Choice]]] = {}
        # By the id of `members`, which are kept so that it stays theirs: to hash a thousand ranks takes longer than all
        # the rest of an answer.
        self._recent: dict[tuple[str, int, int, str], tuple[tuple[int, ...], _Ranges]] = {}

    def estimate(self, collective: Collective) -> CollectiveEstimate:
        """How long a collective takes."""
        size = collective.size
        plan = self.plan(collective)
        return CollectiveEstimate(
            ns=round(plan.duration_ns(size)),
            algorithm=plan.algorithm,
            protocol=plan.protocol,
            channels=plan.channels,
            latency_ns=round(plan.latency_ns),
            origin=self.parameters.origin,
        )

    def plan(self, collective: Collective) -> Plan:
        """How NCCL would carry out a collective."""
        ranges = self._find(collective)
        return ranges.plans[ranges.place(collective.size)]

    def draft_and_plan(self, collective: Collective) -> tuple[Draft, Plan]:
        """The plan, and what it was before anything calibrated came in."""
        ranges = self._find(collective)
        place = ranges.place(collective.size)
        return ranges.drafts[place], ranges.plans[place]

    def _find(self, collective: Collective) -> _Ranges:
        if collective.transfers:
            return self._transfer_ranges(collective)
        recent = collective.operation, id(collective.members), collective.root, collective.dtype
        if recent in self._recent:
            return self._recent[recent][1]
        key = (collective.operation, collective.members, collective.root, collective.dtype)
        ranges = self._ranges.get(key)
        if ranges is None:
            _check(collective)
            ranges = self._ranges[key] = self._compile(collective)
        if len(self._recent) >= _MOST_RECENT:
            self._recent.clear()
        self._recent[recent] = collective.members, ranges
        return ranges

    def _group(self, members: tuple[int, ...]) -> RankGroup:
        if members not in self._groups:
            self._groups[members] = make_group(self.topology, members, self.settings.max_channels)
        return self._groups[members]

    def _compile(self, collective: Collective) -> _Ranges:
        group = self._group(tuple(sorted(set(collective.members))))
        if len(group.members) == 1:
            return self._alone()
        if collective.operation == "all_to_all":
            return self._message_ranges(group, p2p.all_pairs(group.members))
        if collective.operation == "send_recv":
            return self._message_ranges(group, p2p.neighbours(collective.members))
        choices = self._choices(group, collective.operation, collective.dtype)
        root = collective.members[collective.root]
        drafts: dict[tuple[str, str], Draft] = {}
        plans: list[Plan] = []
        for start, choice in choices:
            way = choice.algorithm, choice.protocol
            if way not in drafts:
                draft = draft_collective(group, collective.operation, *way, root)
                if 0 < self.settings.max_channels <= choice.channels:
                    draft = with_fewer_channels(
                        draft, choice.algorithm, collective.operation, len(group.members), choice.channels
                    )
                drafts[way] = draft
            plans.append(self._plan(drafts[way], *way, choice.channels, plans, start))
        starts = [start for start, _ in choices]
        return _Ranges(starts, plans, [drafts[choice.algorithm, choice.protocol] for _, choice in choices])

    def _choices(self, group: RankGroup, operation: str, dtype: str) -> Sequence[tuple[int, tuner.Choice]]:
        """What the tuner chooses, which knows of a group's shape alone."""
        key = (*group.shape, operation, dtype)
        if key not in self._tuned:
            self._tuned[key] = tuner.tune(group, self.parameters.generation, operation, self.settings, dtype)
        return self._tuned[key]

    def _message_ranges(self, group: RankGroup, messages: Messages, starts: Sequence[int] | None = None) -> _Ranges:
        """All ranges, or those that start at these sizes."""
        largest = messages.largest
        starts = starts or _message_starts(len(group.members), largest)
        routed = route_messages(group, messages, pxn=self.settings.pxn)
        drafts: list[Draft] = []
        plans: list[Plan] = []
        for place, start in enumerate(starts):
            draft, channels = self._message_draft(group, routed, start * largest)
            drafts.append(draft)
            plans.append(self._plan(draft, "p2p", "simple" if place else "ll", channels, plans, start))
        return _Ranges(starts, plans, drafts)

    def _message_draft(self, group: RankGroup, routed: Routed, largest: float) -> tuple[Draft, int]:
        """The draft of messages of which the largest has so many bytes, and how many channels a GPU keeps busy."""
        members, domains = len(group.members), len(group.domains)
        channels = p2p.channels_per_peer(members, largest)
        if self.settings.max_channels:
            channels = min(channels, self.settings.max_channels)
        network = self.settings.channels_per_net_peer or p2p.network_channels_per_peer(members, domains)
        draft = draft_messages(routed, channels=channels, net_channels=network)
        busy = channels * draft.gpu_steps + network * draft.network_steps  # of the sender of most messages
        return draft, int(min(p2p.CHANNELS, busy))

    def _plan(
        self, draft: Draft, algorithm: str, protocol: str, channels: int, smaller: Sequence[Plan], start: int
    ) -> Plan:
        """The plan from a size on; `smaller` are those below it."""
        plan = make_plan(self.topology, self.parameters, draft, algorithm, protocol, channels)
        return replace(plan, floor_ns=smaller[-1].duration_ns(start - 1)) if smaller else plan

    def _transfer_ranges(self, collective: Collective) -> _Ranges:
        """Messages of given sizes: their proportions decide the plans."""
        total = sum(transfer.size for transfer in collective.transfers)
        proportions = tuple((part.source, part.target, part.size / (total or 1)) for part in collective.transfers)
        sent = [part for part in proportions if part[0] != part[1] and part[2]]
        if not sent:
            _check(collective)
            return self._alone()
        # Sizes of such messages seldom come twice in the same proportions: larger ranges than asked for can wait.
        starts = _message_starts(len(set(collective.members)), max(part[2] for part in sent))
        starts = [start for start in starts if start <= total] or [0]
        key = (collective.members, proportions, len(starts))
        if key not in self._ranges:
            _check(collective)
            ranks = np.array(collective.members, np.int64)
            source, target, share = (np.array(column) for column in zip(*sent, strict=True))
            group = self._group(tuple(sorted(set(collective.members))))
            messages = Messages(ranks[source], ranks[target], share)
            self._ranges[key] = self._message_ranges(group, messages, starts)
        return self._ranges[key]

    def _alone(self) -> _Ranges:
        """One member: a copy in its own memory, which costs a launch and is not the network's."""
        draft = Draft((), 0, 0, 0)
        return _Ranges([0], [self._plan(draft, "ring", "simple", 1, (), 0)], [draft])


def _message_starts(members: int, largest: float) -> list[int]:
    """Where ranges start: one is for LL, one for every number of channels. `largest` is the largest message's part."""
    starts = [0, math.floor(p2p.LL_LARGEST / largest) + 1]
    channels = p2p.channels_per_peer(members, 0)
    while channels < p2p.CHANNELS:
        starts.append(max(starts[-1] + 1, math.floor(channels * p2p.BYTES_PER_CHANNEL / largest) + 1))
        channels *= 2
    return starts


def _check(collective: Collective) -> None:
    if collective.operation not in OPERATIONS:
        raise ValueError(f'"{collective.operation}" is not an operation; use one of {", ".join(OPERATIONS)}')
    if not collective.members:
        raise ValueError(f"{collective.operation}: a collective needs at least one member")
    if not 0 <= collective.root < len(collective.members):
        raise ValueError(
            f"{collective.operation}: root {collective.root} is not a place among {len(collective.members)} members"
        )
    total = sum(part.size for part in collective.transfers)
    if collective.transfers and collective.size != total:
        raise ValueError(
            f"{collective.operation}: size is {collective.size} and its transfers are of {total} bytes; give their sum"
        )
    for part in collective.transfers:
        if not (0 <= part.source < len(collective.members) and 0 <= part.target < len(collective.members)):
            raise ValueError(
                f"{collective.operation}: a transfer from {part.source} to {part.target} names places that "
                f"{len(collective.members)} members do not have"
            )
