"""Build the `Timeline` of a finished replay."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from maya.devices import Device
from maya.replay.class_replay import ClassReplay
from maya.replay.rank_class import RankClass
from maya.replay.replay_plan import NcclGroup
from maya.replay.run_settings import RunSettings
from maya.replay.timeline import GroupTimeline, RankDetail, Timeline
from maya.replay.truncated_traces import truncations
from maya.util.arrays import Integers
from maya.util.ranks import ranks_text

NEVER_COMPLETED = "never completed"  # in the sentence about a collective that some members do not arrive at


def make_timeline(
    settings: RunSettings,
    device: Device,
    replays: Sequence[tuple[RankClass, ClassReplay]],
    network_origin: str,
    detailed: Collection[int],
    known_problems: Sequence[str],
) -> Timeline:
    """The timeline of all class replays. `known_problems` are those of the recording."""
    timelines: list[GroupTimeline] = []
    details: dict[int, RankDetail] = {}
    end = np.zeros(settings.world_size, dtype=np.int64)
    host_end = np.zeros(settings.world_size, dtype=np.int64)
    stalled: list[str] = []
    for rank_class, replay in replays:
        for group in range(replay.groups):
            made = _group_timeline(rank_class, replay, group)
            timelines.append(made)
            host = _host_cursors(replay, group)
            host_end[made.ranks] = _main_thread_end(replay, group)
            device_end = max((int(times[group]) for times in replay.cursor.values()), default=0)
            end[made.ranks] = max(int(host_end[made.ranks[0]]), device_end)
            for rank in made.ranks.tolist():
                if rank in detailed:
                    details[rank] = RankDetail(rank, rank_class.trace, host, replay.plan.host_own)
        stalled += _stalled(replay)
    if any(rank_class.trace.limit is not None and not replay.open for rank_class, replay in replays):
        stalled = []  # a rank reached the end of what was to be recorded, and others would go on only with it
    timelines.sort(key=lambda one: int(one.ranks[0]))
    problems = [*known_problems, *truncations(timelines), *sorted(stalled)]  # causes before their consequences
    return Timeline(settings, device, timelines, dict(sorted(details.items())), end, host_end, network_origin, problems)


def _group_timeline(rank_class: RankClass, replay: ClassReplay, group: int) -> GroupTimeline:
    plan = replay.plan
    ranks = np.array(replay.ranks, dtype=np.int32)
    chosen = np.flatnonzero(replay.group_of == group)
    chosen = chosen[np.argsort(ranks[chosen], kind="stable")]
    start = np.ascontiguousarray(replay.start[:, group])
    end = start + plan.duration
    end[plan.collectives] = replay.ended[:, group]
    arrival = start.copy()
    arrival[plan.collectives] = replay.arrival[:, group]
    begun = np.array([-1 if times is None else times[group] for times in replay.begun], dtype=np.int64)
    at = begun[plan.segment_of]
    launched = np.where(at < 0, -1, at + plan.launched)
    last = max((int(times[group]) for times in replay.cursor.values()), default=0)
    for times in (launched, arrival):
        times[times < 0] = last
    never_reached = (start < 0) | (end < 0)
    for times in (start, end):
        times[never_reached] = last
    row_of = np.full(len(rank_class.trace.records), -1, dtype=np.intp)
    row_of[plan.position] = np.arange(len(plan.position))
    nodes = row_of[rank_class.records]
    shape = (len(nodes), len(chosen))

    def column(times: Integers) -> Integers:
        return np.broadcast_to(times[nodes][:, None], shape)

    communicators = [
        {number: found.members for number, found in replay.communicators[place].items()} for place in chosen.tolist()
    ]
    return GroupTimeline(
        ranks[chosen],
        rank_class,
        column(launched),
        column(start),
        column(end),
        column(arrival),
        ~never_reached[nodes],
        communicators,
    )


def _host_cursors(replay: ClassReplay, group: int) -> Integers:
    """The host cursor after each record; for records never reached, where the thread stopped."""
    plan = replay.plan
    begun = np.array([-1 if times is None else times[group] for times in replay.begun], dtype=np.int64)
    host = np.where(begun[plan.host_segment] < 0, -1, begun[plan.host_segment] + plan.host_offset)
    # After a wait the cursor is where the next segment begins.
    for segment in plan.segments:
        following = [each for each in segment.next if plan.segments[each].offset < 0]
        if segment.position >= 0 and following and begun[following[0]] >= 0:
            host[segment.position] = begun[following[0]]
    stopped = int(host.max(initial=0))
    host[host < 0] = stopped
    return host


def _main_thread_end(replay: ClassReplay, group: int) -> int:
    ends = [
        int(times[group]) + segment.length
        for times, segment in zip(replay.begun, replay.plan.segments, strict=True)
        if times is not None and segment.group == 0
    ]
    return max(ends, default=0)


def _stalled(replay: ClassReplay) -> list[str]:
    """A sentence for each collective that kept ranks from reaching the end of their traces."""
    ranks = ranks_text(sorted(replay.ranks))
    problems = []
    for stream in sorted(replay.open):
        item = replay.plan.queues[stream][replay.at[stream]]
        assert isinstance(item, NcclGroup)
        call = replay.calls.call[item.first]
        sequence = replay.calls.sequence[item.first]
        members = replay.communicators[0][call.communicator].members
        problems.append(
            f"{ranks}: {call.call} number {sequence} of {ranks_text(members)} {NEVER_COMPLETED}: its other members did "
            "not arrive; the timeline ends there"
        )
    return problems
