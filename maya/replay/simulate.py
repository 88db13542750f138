"""Replay a recorded run: its folder, and settings -> a `Timeline`.

timeline = simulate(Path("maya-runs/train-1"))
timeline = simulate(recording, recording.settings.changed(gpu="b200"), slow_ranks={17: 1300})

Looks up the durations of kernels and replays all rank classes together. A run that ended early is replayed as far as
its traces go; `Timeline.problems` says what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from maya.estimators.kernel import Estimate, Kernel
from maya.replay.class_replay import Calls, ClassReplay
from maya.replay.kernel_durations import KernelDurations
from maya.replay.lone_rendezvous import LoneRendezvousTable
from maya.replay.measured_host_times import typical_host_times
from maya.replay.plan_compiler import compile_plan
from maya.replay.rank_class import RankClass
from maya.replay.recording import Recording, read_recording
from maya.replay.rendezvous import Network, RendezvousTable
from maya.replay.replay_plan import ReplayPlan
from maya.replay.run_settings import RunSettings
from maya.replay.timeline import Timeline
from maya.replay.timeline_builder import make_timeline
from maya.trace import RecordKind
from maya.util.arrays import Integers
from netmodel.flow import FlowNetwork

_SLOWED = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMSET)  # take longer on a slow GPU


class KernelTimes(Protocol):
    """How long kernels take; see kernel_durations.KernelDurations."""

    def of_kernels(self, kernels: Sequence[Kernel]) -> list[Estimate]: ...


def simulate(
    run: Path | Recording,
    settings: RunSettings | None = None,
    *,
    detailed: Collection[int] = (),
    slow_ranks: Mapping[int, int] | None = None,
    durations: KernelTimes | None = None,
    network: Network | None = None,
    alone: bool = False,
) -> Timeline:
    """The timeline of a recorded run, with its own settings or with others.

    `detailed`: ranks that get a `RankDetail`. `slow_ranks`: rank -> factor of its kernel times, in thousandths.
    `durations` and `network` replace the models that the settings name. `alone`: no rank waits for others, and links
    are not shared; times are the least that they can be.
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
    last = max(rank for each in recording.rank_classes for rank in each.ranks)
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
        if settings.network == "flow" and not alone:
            flow = FlowNetwork(times.topology, times.settings)
    table = LoneRendezvousTable(network) if alone else RendezvousTable(network, flow)
    tasks: deque[tuple[ClassReplay, int]] = deque()
    replays: list[tuple[RankClass, ClassReplay]] = []
    for recorded in recording.rank_classes:
        rank_class, per_record = _with_estimates(recorded, durations)
        host_times = _host_times(recording, rank_class, settings)
        for factor, places in _by_factor(rank_class.ranks, slow_ranks or {}).items():
            plan = compile_plan(rank_class.trace, _slowed(rank_class, per_record, factor), settings.host, host_times)
            ranks = [rank_class.ranks[place] for place in places]
            communicators = [rank_class.communicators[place] for place in places]
            calls = _calls(rank_class, plan)
            replays.append((rank_class, ClassReplay(plan, calls, settings.host, ranks, communicators, table, tasks)))
    replays = _replay(replays, table, tasks)
    return make_timeline(settings, device, replays, network.origin, detailed, recording.problems)


def _with_estimates(rank_class: RankClass, durations: KernelTimes) -> tuple[RankClass, Integers]:
    """The rank class with estimates, and for each record of its trace the duration, 0 where it is no kernel."""
    estimates = durations.of_kernels([item.kernel for item in rank_class.kernels])
    per_record = np.zeros(len(rank_class.trace.records), dtype=np.int64)
    is_kernel = rank_class.kernel >= 0
    if estimates:
        per_kernel = np.array([estimate.ns for estimate in estimates], dtype=np.int64)
        per_record[rank_class.records[is_kernel]] = per_kernel[rank_class.kernel[is_kernel]]
    return replace(rank_class, estimates=estimates), per_record


def _host_times(recording: Recording, rank_class: RankClass, settings: RunSettings) -> Integers | None:
    """The script's own time before each record, if the settings ask for measured host times."""
    if settings.host_time != "measured":
        return None
    measured = typical_host_times(rank_class, settings.options.get("steps_from"), allocations=recording.allocations)
    return measured * settings.host.scale // 1000


def _by_factor(ranks: Sequence[int], slow_ranks: Mapping[int, int]) -> dict[int, list[int]]:
    """Factor -> places of the ranks that have it."""
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        places.setdefault(slow_ranks.get(rank, 1000), []).append(place)
    return places


def _slowed(rank_class: RankClass, per_record: Integers, factor: int) -> Integers:
    if factor == 1000:
        return per_record
    slowed = np.isin(rank_class.trace.records["kind"], np.array(_SLOWED, dtype=np.uint8))
    return np.where(slowed, per_record * factor // 1000, per_record)


def _calls(rank_class: RankClass, plan: ReplayPlan) -> Calls:
    """The collectives of a rank class, by the plan's nodes."""
    positions = plan.position[plan.collectives]
    rows = np.searchsorted(rank_class.records, positions)
    nodes = plan.collectives.tolist()
    sequences = rank_class.trace.records["value"][positions].tolist()
    return Calls(
        {node: rank_class.calls[call] for node, call in zip(nodes, rank_class.call[rows].tolist(), strict=True)},
        dict(zip(nodes, sequences, strict=True)),
    )


def _replay(
    replays: list[tuple[RankClass, ClassReplay]], table: RendezvousTable, tasks: deque[tuple[ClassReplay, int]]
) -> list[tuple[RankClass, ClassReplay]]:
    """Run the replay to its end. Returns the class replays, of which some may have been divided."""
    for _, replay in replays:
        replay.begin()
    while True:
        while tasks:
            replay, task = tasks.popleft()
            replay.advance(task)
        # The ranks of a class replay wait for each other at every collective. Divide it, so that those that can
        # continue do. Where links are shared, divide before time passes: their next transfers share the links.
        divided = _divided(replays) if table.is_shared else replays
        if len(divided) == len(replays):
            if table.pass_time():
                continue
            divided = _divided(replays)
            if len(divided) == len(replays):
                return replays
        replays = divided


def _divided(replays: list[tuple[RankClass, ClassReplay]]) -> list[tuple[RankClass, ClassReplay]]:
    """Divide every class replay in which some ranks can continue and others cannot."""
    divided: list[tuple[RankClass, ClassReplay]] = []
    for rank_class, replay in replays:
        stuck = replay.stuck_ranks()
        divided += (
            [(rank_class, subset) for subset in replay.divide(stuck)] if stuck is not None else [(rank_class, replay)]
        )
    return divided
