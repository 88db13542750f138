"""What is known of a run, as the page of its report shows it.

In: a `Result` (maya/results). Out: `Content`. Detail is kept for as many events as fit into a page of moderate size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from maya import __version__
from maya.replay.timeline import GroupTimeline
from maya.report.activities import ActivityLabels
from maya.report.content import (
    Bar,
    Content,
    Figure,
    MemoryView,
    RankClassRow,
    Share,
    StepsView,
    StreamsView,
    TimePart,
    TrafficView,
)
from maya.report.settings_tables import settings_tables
from maya.report.stream_events import count_events, streams_of
from maya.report.top_tables import collective_table, kernel_table
from maya.results import CLASSES, TITLES, Result, TimeClass
from maya.results.memory import memory_curve
from maya.util.ranks import ranges
from maya.util.text import bytes_text, share_text, small, time_text

_MOST_EVENTS = 40_000  # on the whole page
_MOST_STEPS = 3
_MOST_RANKS = 8  # that are drawn
_MOST_POINTS = 600  # of memory, for each rank

MEANINGS = {
    TimeClass.GEMM: "matrix products",
    TimeClass.ATTENTION: "fused attention kernels",
    TimeClass.CONVOLUTION: "convolutions",
    TimeClass.MEMORY_BOUND: "kernels that the GPU's memory limits: norms, activations, optimizer, …",
    TimeClass.OTHER: "what else computes",
    TimeClass.COMMUNICATION: "collectives and messages with nothing computed beside them",
    TimeClass.COPY: "copies and memsets with nothing else beside them",
    TimeClass.BUBBLE: "waits for a message whose other end is not there yet",
    TimeClass.WAITING: "waits in a collective for ranks that come later",
    TimeClass.SLOWED: "computing takes longer while communication runs beside it",
    TimeClass.HOST_BOUND: "the GPU has nothing to do because the host has not launched it yet",
    TimeClass.IDLE: "nothing is left to do",
}
_ORIGINS = {
    "measured": "this very shape was measured on this GPU",
    "model": "a model trained on measurements of this GPU",
    "roofline": "a bound of this GPU, with the efficiency of its nearest relatives",
    "default": "nothing is known about the work but that it was launched",
}


def collect(result: Result) -> Content:
    """The content of a report."""
    timeline, steps, breakdown = result.timeline, result.steps, result.breakdown
    settings = timeline.settings
    labels = ActivityLabels(timeline.network_origin)
    means = breakdown.mean_ns
    slowest = breakdown.slowest
    drawn = drawn_ranks(result)
    return Content(
        title=Path(settings.script).name or "a run of maya-torchrun",
        subtitle=_subtitle(result),
        figures=_figures(result),
        notes=[
            *(each.text() for each in result.assumptions),
            *timeline.problems,
            *([steps.note] if steps.note else []),
        ],
        steps=StepsView(list(steps.lengths_ns), steps.warm_up, steps.typical),
        parts=[
            TimePart(of.value, TITLES[of], MEANINGS[of], means[:, number].tolist())
            for number, of in enumerate(CLASSES)
            if means[:, number].any()
        ],
        hidden_ns=breakdown.mean_hidden_ns.tolist(),
        bars=_bars(result),
        why=_micro(f"Stragglers: {slowest.text}.") if timeline.world_size > 1 else "",
        ranks_per_node=settings.ranks_per_node,
        rank_classes=_rank_classes(result),
        streams=_streams(result, drawn, labels),
        activities=labels.activities,  # those that the streams show, so after them
        peak_bytes=_peaks(result),
        capacity_bytes=result.memory.capacity,
        memory=_memory(result, drawn),
        traffic=_traffic(result),
        origins=_origins(result),
        network_origin=_network(result),
        kernels=kernel_table(timeline, steps, labels),
        collectives=collective_table(timeline, steps),
        settings=settings_tables(settings, timeline.device),
    )


def drawn_ranks(result: Result) -> list[int]:
    """One rank of each behaviour, and those that are told apart by their speed."""
    breakdown = result.breakdown
    special = [breakdown.median_rank, breakdown.slowest.rank, breakdown.fastest_rank, result.memory.worst_rank]
    first = [int(min(part[0] for part in ranks)) for ranks in _ranks_of_classes(result)]
    with_trace = {rank for one in result.timeline.groups for rank in one.ranks.tolist()}
    chosen = dict.fromkeys(rank for rank in (*special[:2], *first, *special[2:]) if rank in with_trace)
    return sorted(list(chosen)[:_MOST_RANKS])


def _ranks_of_classes(result: Result) -> list[list[np.ndarray[tuple[int], np.dtype[np.int32]]]]:
    found: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int32]]]] = {}
    for one in result.timeline.groups:
        found.setdefault(id(one.rank_class), []).append(one.ranks)
    return list(found.values())


def _class_of(result: Result, rank: int) -> tuple[int, int]:
    """The number of a rank's class, and its column in it."""
    for number, one in enumerate(result.timeline.groups):
        at = int(np.searchsorted(one.ranks, rank))
        if at < len(one.ranks) and int(one.ranks[at]) == rank:
            return number, at
    raise KeyError(rank)


def _subtitle(result: Result) -> str:
    settings, device = result.timeline.settings, result.timeline.device
    nodes = -(-settings.world_size // settings.ranks_per_node)
    torch = next((one.rank_class.trace.header.torch_version for one in result.timeline.groups), "")
    parts = [
        f"{_number(settings.world_size, 'rank')} on {_number(nodes, 'node')} of {settings.load_cluster().name}",
        device.name,
        *([f"PyTorch {torch}"] if torch else []),
        f"Maya {__version__}",
    ]
    return " · ".join(parts)


def _figures(result: Result) -> list[Figure]:
    steps, throughput, memory = result.steps, result.throughput, result.memory
    after = "after warm-up" if steps.warm_up else "of the run"
    figures = [Figure("step time", _time(result.step_ns), f"median of {_number(len(steps.measured), 'step')} {after}")]
    rate = throughput.samples_per_second
    if rate is not None and throughput.samples is not None:
        unit = throughput.samples.unit
        figures.append(Figure(f"{unit}/s", f"{rate:,.0f}", f"{rate / throughput.gpus:,.0f} per GPU"))
    if throughput.mfu is not None and throughput.hfu is not None:
        same = abs(throughput.mfu - throughput.hfu) < 1e-9
        note = "nothing is computed twice" if same else f"HFU {share_text(throughput.hfu)}, with what is computed twice"
        figures.append(Figure("MFU", share_text(throughput.mfu), note))
    exposed = int(result.breakdown.mean_ns[:, CLASSES.index(TimeClass.COMMUNICATION)].mean())
    length = int(result.breakdown.mean_ns.sum(axis=1).mean()) or 1
    if result.timeline.world_size > 1:
        note = f"{_time(exposed)} of a step, mean of all ranks"
        figures.append(Figure("exposed communication", share_text(exposed / length), note))
    worst = memory.of_rank(memory.worst_rank)
    if worst is not None:
        note = f"of {bytes_text(memory.capacity)}, rank {memory.worst_rank}"
        figures.append(Figure("peak memory", bytes_text(worst.total), note))
    hours = 1000 * throughput.gpu_hours_per_step
    price = throughput.price_per_step
    note = f"{1000 * price:,.2f} in all" if price is not None else "of all GPUs"
    figures.append(Figure("1000 steps", f"{small(hours)} GPU h", note))
    return figures


def _bars(result: Result) -> list[Bar]:
    breakdown = result.breakdown
    bars = [Bar("median", breakdown.median_rank)]
    if result.timeline.world_size > 1:
        bars += [Bar("least busy", breakdown.fastest_rank), Bar("busiest", breakdown.slowest.rank)]
    return bars


def _rank_classes(result: Result) -> list[RankClassRow]:
    found = []
    for parts in _ranks_of_classes(result):
        ranks = sorted(rank for part in parts for rank in part.tolist())
        found.append(RankClassRow(ranges(ranks), len(ranks), ranks[0]))
    return found


def _streams(result: Result, drawn: Sequence[int], labels: ActivityLabels) -> list[StreamsView]:
    """The typical step, and its neighbours as far as there is room."""
    budget = _MOST_EVENTS // max(1, len(drawn))
    found = []
    for rank in drawn:
        number, column = _class_of(result, rank)
        one = result.timeline.groups[number]
        bounds = result.steps.groups[number].bounds_ns.tolist()
        first, last = _span(result.steps.typical, len(bounds) - 1, bounds, one, column, budget)
        ends = [(step, bounds[step + 1]) for step in range(max(0, first - 1), last)]
        found.append(streams_of(one, column, (bounds[first], bounds[last]), ends, labels, budget))
    return found


def _span(
    typical: int, count: int, bounds: Sequence[int], one: GroupTimeline, column: int, budget: int
) -> tuple[int, int]:
    """First boundary and last one of the steps to draw."""
    first, last = typical, typical + 1
    while last - first < _MOST_STEPS:
        wider = (first, last + 1) if last < count else (first - 1, last)
        if wider[0] < 0 or count_events(one, column, (bounds[wider[0]], bounds[wider[1]])) > budget:
            break
        first, last = wider
    return first, last


def _peaks(result: Result) -> list[int]:
    peaks = np.zeros(result.timeline.world_size, dtype=np.int64)
    for peak, ranks in zip(result.memory.peaks, result.memory.ranks, strict=True):
        peaks[ranks] = peak.total
    found: list[int] = peaks.tolist()
    return found


def _memory(result: Result, drawn: Sequence[int]) -> list[MemoryView]:
    found = []
    for rank in drawn:
        course = memory_curve(result.timeline, rank, _MOST_POINTS)
        peak = result.memory.of_rank(rank)
        if peak is None or not len(course.ns):
            continue
        outside = peak.context + peak.nccl + peak.workspaces
        found.append(MemoryView(rank, course.ns.tolist(), course.allocated.tolist(), course.reserved.tolist(), outside))
    return found


def _traffic(result: Result) -> TrafficView:
    traffic = result.traffic
    unit = traffic.between.removesuffix("s")
    sources, targets = np.nonzero(traffic.matrix)
    entries = np.stack((sources, targets, traffic.matrix[sources, targets]), axis=1).reshape(-1)
    how = (
        f"Bytes that each {unit} sends to each other in a step, counted as {traffic.method}. Within nodes "
        f"{bytes_text(traffic.sent_within_nodes)}, between nodes {bytes_text(traffic.sent_between_nodes)}."
    )
    if not len(entries):
        how = "The ranks sent each other nothing."
    return TrafficView(unit, len(traffic.matrix), entries.tolist(), how)


def _origins(result: Result) -> list[Share]:
    shares = [Share(of.value, of.value, _ORIGINS[of.value], ns) for of, ns in result.origins.kernels.items()]
    shares += [
        Share("network", f"network model, {of}", "collectives and messages", ns)
        for of, ns in result.origins.network.items()
    ]
    return shares


def _network(result: Result) -> str:
    parameters = result.timeline.settings.load_cluster().parameters
    about = "; ".join(filter(None, [parameters.data, parameters.error]))
    spread = f"Durations of kernels are expected to be off by {share_text(result.origins.spread)}, weighted by time. "
    lacking = (
        f"Kernels without a model: {result.kernels_without_model.text}. " if result.kernels_without_model.text else ""
    )
    return f"{spread}{lacking}Parameters of the network: {parameters.origin}{f' ({about})' if about else ''}."


def _number(count: int, one: str) -> str:
    return f"{count:,} {one}{'s' if count != 1 else ''}"


def _time(ns: int) -> str:
    return _micro(time_text(ns))


def _micro(text: str) -> str:
    """As the page writes it; a terminal may not have the letter."""
    return re.sub(r"(?<=\d) us\b", " µs", text)
