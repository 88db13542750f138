"""From a run's folder to its timeline.

timeline = simulate(Path("maya-runs/train-1"))
timeline = simulate(recording, recording.settings.changed(gpu="b200"), slow_ranks={17: 1300})

Looks up how long works take, and replays what the ranks did. A run that ended early is replayed as far as its traces
go; `Timeline.problems` says what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from maya.estimators.kernel import Estimate, Kernel
from maya.replay.class_replay import Calls, ClassReplay
from maya.replay.kernel_durations import KernelDurations
from maya.replay.measured_host_times import typical_host_times
from maya.replay.plan_compiler import compile_plan
from maya.replay.recording import Part, Recording, read_recording
from maya.replay.rendezvous import Network, RendezvousTable
from maya.replay.replay_plan import ReplayPlan
from maya.replay.run_settings import RunSettings
from maya.replay.timeline import Program, Timeline
from maya.replay.timeline_builder import make_timeline
from maya.trace import RecordKind
from netmodel.flow import FlowNetwork

_SLOWED = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMSET)  # by a slow GPU

Nanoseconds = npt.NDArray[np.int64]


class WorkTimes(Protocol):
    """How long works take; see durations.Durations."""

    def of_works(self, works: Sequence[Kernel]) -> list[Estimate]: ...


def simulate(
    run: Path | Recording,
    settings: RunSettings | None = None,
    *,
    detailed: Collection[int] = (),
    slow_ranks: Mapping[int, int] | None = None,
    durations: WorkTimes | None = None,
    network: Network | None = None,
) -> Timeline:
    """The timeline of a recorded run, on the settings it ran with or on others.

    `detailed`: ranks whose host is wanted in full. `slow_ranks`: rank -> how long its kernels take, in thousandths of
    what they should. `durations` and `network` replace those that the settings name.
    """
    folder = run.folder if isinstance(run, Recording) else Path(run)
    if settings is None:
        settings = run.settings if isinstance(run, Recording) else RunSettings.load(folder)
    inductor = settings.inductor_folder(folder)
    allocations = any(settings.host.calls.get(kind) for kind in (RecordKind.MALLOC, RecordKind.FREE))
    if isinstance(run, Recording) and run.allocations >= allocations:
        recording = run
    else:
        recording = read_recording(folder, inductor, allocations=allocations)
    last = max(rank for part in recording.parts for rank in part.behaviour.ranks)
    if last >= settings.world_size:
        raise ValueError(
            f"{folder} has a trace of rank {last}, but the job has {settings.world_size} ranks; give the settings that "
            "it ran with, and a folder of one run alone"
        )
    device = settings.device()
    if durations is None:
        durations = KernelDurations(device, [Path(pack) for pack in settings.packs], inductor)
    flow = None
    if network is None:
        network = times = settings.collective_times()
        if settings.network == "flow":
            flow = FlowNetwork(times.topology, times.settings)
    meetings = RendezvousTable(network, flow)
    tasks: deque[tuple[ClassReplay, int]] = deque()
    programs: list[Program] = []
    cohorts: list[tuple[Program, ClassReplay]] = []
    for part in recording.parts:
        program, per_record = _with_times(part, durations)
        host_times = _host_times(recording, part, settings)
        programs.append(program)
        for factor, places in _by_factor(part.behaviour.ranks, slow_ranks or {}).items():
            course = compile_plan(part.trace, _slowed(part, per_record, factor), settings.host, host_times)
            ranks = [part.behaviour.ranks[place] for place in places]
            communicators = [part.behaviour.communicators[place] for place in places]
            calls = _calls(part, course)
            cohorts.append((program, ClassReplay(course, calls, settings.host, ranks, communicators, meetings, tasks)))
    cohorts = _replay(cohorts, meetings, tasks)
    return make_timeline(settings, device, cohorts, network.origin, detailed, recording.problems)


def _with_times(part: Part, durations: WorkTimes) -> tuple[Program, Nanoseconds]:
    """A program, and the duration of each record of its trace that is a work."""
    estimates = durations.of_works([item.work for item in part.works])
    program = Program(part.trace, part.records, part.works, estimates, part.work, part.calls, part.call)
    per_record = np.zeros(len(part.trace.records), dtype=np.int64)
    is_work = part.work >= 0
    if estimates:
        per_work = np.array([estimate.ns for estimate in estimates], dtype=np.int64)
        per_record[part.records[is_work]] = per_work[part.work[is_work]]
    return program, per_record


def _host_times(recording: Recording, part: Part, settings: RunSettings) -> Nanoseconds | None:
    """What the program's own code takes before each record, if that is to be as it was measured."""
    if settings.host_time != "measured":
        return None
    measured = typical_host_times(part.behaviour, settings.options.get("steps_from"), allocations=recording.allocations)
    return measured * settings.host.scale // 1000


def _by_factor(ranks: Sequence[int], slow_ranks: Mapping[int, int]) -> dict[int, list[int]]:
    """Places of ranks by how slow they are."""
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        places.setdefault(slow_ranks.get(rank, 1000), []).append(place)
    return places


def _slowed(part: Part, per_record: Nanoseconds, factor: int) -> Nanoseconds:
    if factor == 1000:
        return per_record
    slowed = np.isin(part.trace.records["kind"], np.array(_SLOWED, dtype=np.uint8))
    return np.where(slowed, per_record * factor // 1000, per_record)


def _calls(part: Part, course: ReplayPlan) -> Calls:
    """The collectives of a part, by the course's nodes."""
    positions = course.position[course.collectives]
    rows = np.searchsorted(part.records, positions)
    nodes = course.collectives.tolist()
    sequences = part.trace.records["value"][positions].tolist()
    return Calls(
        {node: part.calls[call] for node, call in zip(nodes, part.call[rows].tolist(), strict=True)},
        dict(zip(nodes, sequences, strict=True)),
    )


def _replay(
    cohorts: list[tuple[Program, ClassReplay]], meetings: RendezvousTable, tasks: deque[tuple[ClassReplay, int]]
) -> list[tuple[Program, ClassReplay]]:
    """Let everything happen. Returns the cohorts there are in the end."""
    for _, cohort in cohorts:
        cohort.begin()
    while True:
        while tasks:
            cohort, task = tasks.popleft()
            cohort.advance(task)
        # Ranks of a cohort wait for each other at every collective, which those that can go on need not do. Where links
        # are shared they must not: what they start next shares them, too.
        divided = _divided(cohorts) if meetings.is_shared else cohorts
        if len(divided) == len(cohorts):
            if meetings.pass_time():
                continue
            divided = _divided(cohorts)
            if len(divided) == len(cohorts):
                return cohorts
        cohorts = divided


def _divided(cohorts: list[tuple[Program, ClassReplay]]) -> list[tuple[Program, ClassReplay]]:
    """Those with ranks that can go on and others that cannot are two each."""
    divided: list[tuple[Program, ClassReplay]] = []
    for program, cohort in cohorts:
        stuck = cohort.stuck_ranks()
        divided += [(program, part) for part in cohort.divide(stuck)] if stuck is not None else [(program, cohort)]
    return divided
