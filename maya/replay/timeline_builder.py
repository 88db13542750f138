"""A finished replay -> a `Timeline`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from maya.devices import Device
from maya.replay.class_replay import ClassReplay
from maya.replay.replay_plan import Meet
from maya.replay.run_settings import RunSettings
from maya.replay.timeline import GroupTimeline, Program, RankDetail, Timeline, Times
from maya.replay.truncated_traces import some_ranks, truncations


def make_timeline(
    settings: RunSettings,
    device: Device,
    cohorts: Sequence[tuple[Program, ClassReplay]],
    network_origin: str,
    detailed: Collection[int],
    known_problems: Sequence[str],
) -> Timeline:
    """The timeline; `known_problems` are those of the recording."""
    classes: list[GroupTimeline] = []
    details: dict[int, RankDetail] = {}
    end = np.zeros(settings.world_size, dtype=np.int64)
    host_end = np.zeros(settings.world_size, dtype=np.int64)
    stalled: list[str] = []
    for program, cohort in cohorts:
        for lane in range(cohort.lanes):
            made = _class(program, cohort, lane)
            classes.append(made)
            host = _host_cursors(cohort, lane)
            host_end[made.ranks] = _main_thread_end(cohort, lane)
            device_end = max((int(times[lane]) for times in cohort.cursor.values()), default=0)
            end[made.ranks] = max(int(host_end[made.ranks[0]]), device_end)
            for rank in made.ranks.tolist():
                if rank in detailed:
                    details[rank] = RankDetail(rank, program.trace, host, cohort.course.host_own)
        stalled += _stalled(cohort)
    classes.sort(key=lambda one: int(one.ranks[0]))
    problems = [*known_problems, *truncations(classes), *sorted(stalled)]  # causes before what follows from them
    return Timeline(settings, device, classes, dict(sorted(details.items())), end, host_end, network_origin, problems)


def _class(program: Program, cohort: ClassReplay, lane: int) -> GroupTimeline:
    course = cohort.course
    ranks = np.array(cohort.ranks, dtype=np.int32)
    chosen = np.flatnonzero(cohort.lane == lane)
    chosen = chosen[np.argsort(ranks[chosen], kind="stable")]
    start = np.ascontiguousarray(cohort.start[:, lane])
    end = start + course.duration
    end[course.collectives] = cohort.ended[:, lane]
    arrival = start.copy()
    arrival[course.collectives] = cohort.arrival[:, lane]
    begun = np.array([-1 if times is None else times[lane] for times in cohort.begun], dtype=np.int64)
    at = begun[course.segment_of]
    launched = np.where(at < 0, -1, at + course.launched)
    last = max((int(times[lane]) for times in cohort.cursor.values()), default=0)
    for times in (launched, arrival):
        times[times < 0] = last
    never_reached = (start < 0) | (end < 0)
    for times in (start, end):
        times[never_reached] = last
    row_of = np.full(len(program.trace.records), -1, dtype=np.intp)
    row_of[course.position] = np.arange(len(course.position))
    nodes = row_of[program.records]
    shape = (len(nodes), len(chosen))

    def column(times: Times) -> Times:
        return np.broadcast_to(times[nodes][:, None], shape)

    communicators = [
        {number: found.members for number, found in cohort.communicators[place].items()} for place in chosen.tolist()
    ]
    return GroupTimeline(
        ranks[chosen],
        program,
        column(launched),
        column(start),
        column(end),
        column(arrival),
        ~never_reached[nodes],
        communicators,
    )


def _host_cursors(cohort: ClassReplay, lane: int) -> Times:
    """After each record; of those never reached, where the thread stopped."""
    course = cohort.course
    begun = np.array([-1 if times is None else times[lane] for times in cohort.begun], dtype=np.int64)
    host = np.where(begun[course.host_segment] < 0, -1, begun[course.host_segment] + course.host_offset)
    # After a wait the cursor is where the next segment begins.
    for segment in course.segments:
        following = [each for each in segment.next if course.segments[each].offset < 0]
        if segment.position >= 0 and following and begun[following[0]] >= 0:
            host[segment.position] = begun[following[0]]
    stopped = int(host.max(initial=0))
    host[host < 0] = stopped
    return host


def _main_thread_end(cohort: ClassReplay, lane: int) -> int:
    ends = [
        int(times[lane]) + segment.length
        for times, segment in zip(cohort.begun, cohort.course.segments, strict=True)
        if times is not None and segment.group == 0
    ]
    return max(ends, default=0)


def _stalled(cohort: ClassReplay) -> list[str]:
    """Collectives that kept ranks from coming to the end of their traces."""
    ranks = some_ranks(sorted(cohort.ranks))
    problems = []
    for stream in sorted(cohort.open):
        item = cohort.course.queues[stream][cohort.at[stream]]
        assert isinstance(item, Meet)
        call = cohort.calls.call[item.first]
        sequence = cohort.calls.sequence[item.first]
        members = cohort.communicators[0][call.communicator].members
        problems.append(
            f"{ranks}: {call.call} number {sequence} of {some_ranks(members)} never came about: its other members "
            "did not come; the timeline ends there"
        )
    return problems
