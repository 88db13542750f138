"""From a `Result` to plain figures. The API reads results, timelines and totals of the report here and nowhere else.

In: a `Result` of maya.results, or `RunSettings` of maya.replay. Out: the dataclasses of figures.py.
"""

from __future__ import annotations

from maya.api.figures import (
    BreakdownFigures,
    CollectiveFigures,
    FigureTable,
    JobSettings,
    KernelFigures,
    MemoryFigures,
    RankFigures,
    RankMemory,
    SpeedFigures,
    StepFigures,
)
from maya.replay.run_settings import RunSettings
from maya.report.activities import ActivityLabels
from maya.report.top_tables import collective_totals, kernel_totals
from maya.results import CLASSES, Result


def job_settings(settings: RunSettings) -> JobSettings:
    return JobSettings(
        script=settings.script,
        world_size=settings.world_size,
        ranks_per_node=settings.ranks_per_node,
        gpu=settings.gpu,
        cluster=settings.cluster,
        network=settings.network,
        host=settings.host_file,
        host_time=settings.host_time,
        clock=settings.clock,
        changes=dict(settings.changes),
        nccl=dict(settings.nccl),
        packs=settings.packs,
        faults=settings.faults,
        injected=settings.injected,
        schedule_seed=settings.schedule_seed,
    )


def step_figures(result: Result) -> StepFigures:
    steps = result.steps
    return StepFigures(
        step_time_ns=steps.median_ns,
        lengths_ns=steps.lengths_ns,
        measured=steps.measured,
        warm_up=steps.warm_up,
        skipped=steps.skipped,
        source=steps.source,
        note=steps.note,
    )


def step_breakdown(result: Result) -> BreakdownFigures:
    names = [name.value for name in CLASSES]
    means, hidden = result.breakdown.mean_ns, result.breakdown.mean_hidden_ns
    ranks = max(1, result.timeline.world_size)
    return BreakdownFigures(
        mean_ns=dict(zip(names, (means.sum(axis=0) // ranks).tolist(), strict=True)),
        hidden_communication_ns=int(hidden.sum()) // ranks,
        ranks=tuple(dict(zip(names, rank, strict=True)) for rank in means.tolist()),
        rank_hidden_communication_ns=tuple(hidden.tolist()),
    )


def rank_table(result: Result) -> FigureTable[RankFigures]:
    breakdown = result.breakdown
    columns = zip(
        breakdown.mean_ns.sum(axis=1).tolist(),
        breakdown.own_ns.tolist(),
        breakdown.mean_communication_ns.tolist(),
        breakdown.mean_hidden_ns.tolist(),
        strict=True,
    )
    peaks = [result.memory.of_rank(rank) for rank in range(result.timeline.world_size)]
    rows = (
        RankFigures(rank, *times, None if peak is None else peak.total)
        for rank, (times, peak) in enumerate(zip(columns, peaks, strict=True))
    )
    return FigureTable(RankFigures, rows, index="rank")


def memory_figures(result: Result) -> MemoryFigures:
    memory = result.memory
    peaks = {rank: memory.of_rank(rank) for rank in range(result.timeline.world_size)}
    worst = memory.of_rank(memory.worst_rank)
    return MemoryFigures(
        capacity_bytes=memory.capacity,
        peak_bytes=0 if worst is None else worst.total,
        peak_rank=memory.worst_rank,
        ranks=tuple(
            RankMemory(rank, peak.allocated, peak.reserved, peak.workspaces, peak.nccl, peak.context, peak.total)
            for rank, peak in peaks.items()
            if peak is not None
        ),
    )


def speed_figures(result: Result) -> SpeedFigures:
    speed = result.throughput
    return SpeedFigures(
        gpus=speed.gpus,
        unit=None if speed.samples is None else speed.samples.unit,
        samples_per_step=None if speed.samples is None else speed.samples.per_step,
        samples_per_second=speed.samples_per_second,
        samples_per_second_per_gpu=speed.samples_per_second_per_gpu,
        unknown=speed.no_samples,
        flops_per_step=speed.flops_per_step,
        recomputed_flops_per_step=speed.recomputed_flops_per_step,
        mfu=speed.mfu,
        hfu=speed.hfu,
        gpu_hours_per_step=speed.gpu_hours_per_step,
        price_per_step=speed.price_per_step,
    )


def collectives_of(result: Result) -> FigureTable[CollectiveFigures]:
    return FigureTable(
        CollectiveFigures,
        (
            CollectiveFigures(
                call=each.name,
                size_bytes=each.size,
                ranks=each.members,
                calls=each.launches,
                total_ns=each.ns,
                mean_ns=each.ns // each.launches,
                bus_bytes_per_second=each.bus_bytes_per_second,
                waiting_ns=each.waited_ns,
            )
            for each in collective_totals(result.timeline, result.steps)
        ),
    )


def kernels_of(result: Result) -> FigureTable[KernelFigures]:
    totals = kernel_totals(result.timeline, result.steps, ActivityLabels(result.timeline.network_origin))
    everything = sum(each.ns for each in totals) or 1
    return FigureTable(
        KernelFigures,
        (
            KernelFigures(
                name=each.activity.name,
                detail=each.activity.detail,
                time_class=each.activity.kind,
                total_ns=each.ns,
                share=each.ns / everything,
                launches=each.launches,
                mean_ns=each.ns // each.launches,
                origin=each.estimate.origin.value,
                spread=each.estimate.spread,
            )
            for each in totals
        ),
    )
