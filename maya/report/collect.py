"""The numbers and texts on the page of a report.

In: a `Result` (maya/results). Out: `Content`, with as many events as fit into a page of moderate size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from maya.replay.mesh import mesh_of
from maya.replay.timeline import GroupTimeline
from maya.report.activities import ActivityLabels
from maya.report.content import (
    Bar,
    Content,
    Figure,
    MemoryView,
    MeshDimension,
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
from maya.util.text import bytes_text, number_text, share_text, time_text
from maya.version import __version__

_MOST_EVENTS = 40_000  # on the whole page
_MOST_STEPS = 3
_MOST_RANKS = 8  # with streams and memory on the page
_MOST_WITHOUT_MESH = 64  # ranks; those of larger jobs are also drawn by their coordinates
_MOST_POINTS = 600  # of the memory curve of each rank

MEANINGS = {
    TimeClass.GEMM: "matrix multiplications",
    TimeClass.ATTENTION: "fused attention kernels",
    TimeClass.CONVOLUTION: "convolutions",
    TimeClass.MEMORY_BOUND: "kernels limited by memory bandwidth: norms, activations, optimizer, …",
    TimeClass.OTHER: "all other kernels",
    TimeClass.COMMUNICATION: "collectives and send/recv that no computing overlaps with",
    TimeClass.COPY: "copies and memsets that nothing else overlaps with",
    TimeClass.BUBBLE: "waits in a send or recv for the peer",
    TimeClass.WAITING: "waits in a collective for ranks that arrive later",
    TimeClass.SLOWED: "extra time of kernels that overlap with communication",
    TimeClass.HOST_BOUND: "the GPU waits for the host to launch the next kernel",
    TimeClass.IDLE: "no kernel is left in the step",
}
_ORIGINS = {
    "measured": "this shape was measured on this GPU",
    "model": "a model trained on measurements of this GPU",
    "roofline": "a bound of this GPU, with the efficiency measured on similar GPUs",
    "default": "nothing is known about the kernel except its launch",
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
        mesh=_mesh(result) if timeline.world_size > _MOST_WITHOUT_MESH else (),
    )


def drawn_ranks(result: Result) -> list[int]:
    """The ranks shown in detail: median, slowest, fastest and the one with most memory, and one of each rank class."""
    breakdown = result.breakdown
    special = [breakdown.median_rank, breakdown.slowest.rank, breakdown.fastest_rank, result.memory.worst_rank]
    first = [int(min(of_group[0] for of_group in ranks)) for ranks in _ranks_of_classes(result)]
    with_trace = {rank for group in result.timeline.groups for rank in group.ranks.tolist()}
    chosen = dict.fromkeys(rank for rank in (*special[:2], *first, *special[2:]) if rank in with_trace)
    return sorted(list(chosen)[:_MOST_RANKS])


def _ranks_of_classes(result: Result) -> list[list[npt.NDArray[np.int32]]]:
    found: dict[int, list[npt.NDArray[np.int32]]] = {}
    for group in result.timeline.groups:
        found.setdefault(id(group.rank_class), []).append(group.ranks)
    return list(found.values())


def _group_of(result: Result, rank: int) -> tuple[int, int]:
    """The number of a rank's replay group, and its column in it."""
    for number, group in enumerate(result.timeline.groups):
        at = int(np.searchsorted(group.ranks, rank))
        if at < len(group.ranks) and int(group.ranks[at]) == rank:
            return number, at
    raise KeyError(rank)


def _subtitle(result: Result) -> str:
    settings, device = result.timeline.settings, result.timeline.device
    nodes = -(-settings.world_size // settings.ranks_per_node)
    torch = next((group.rank_class.trace.header.torch_version for group in result.timeline.groups), "")
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
        note = "no recomputation" if same else f"HFU {share_text(throughput.hfu)}, with recomputation"
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
    note = f"{1000 * price:,.2f} in total" if price is not None else "on all GPUs"
    figures.append(Figure("1000 steps", f"{number_text(hours)} GPU h", note))
    return figures


def _bars(result: Result) -> list[Bar]:
    breakdown = result.breakdown
    bars = [Bar("median", breakdown.median_rank)]
    if result.timeline.world_size > 1:
        bars += [Bar("fastest", breakdown.fastest_rank), Bar("slowest", breakdown.slowest.rank)]
    return bars


def _rank_classes(result: Result) -> list[RankClassRow]:
    found = []
    for groups in _ranks_of_classes(result):
        ranks = sorted(rank for of_group in groups for rank in of_group.tolist())
        found.append(RankClassRow(ranges(ranks), len(ranks), ranks[0]))
    return found


def _streams(result: Result, drawn: Sequence[int], labels: ActivityLabels) -> list[StreamsView]:
    """The streams in the typical step, and in its neighbours as far as the budget of events allows."""
    budget = _MOST_EVENTS // max(1, len(drawn))
    found = []
    for rank in drawn:
        number, column = _group_of(result, rank)
        group = result.timeline.groups[number]
        bounds = result.steps.groups[number].bounds_ns.tolist()
        first, last = _span(result.steps.typical, len(bounds) - 1, bounds, group, column, budget)
        ends = [(step, bounds[step + 1]) for step in range(max(0, first - 1), last)]
        found.append(streams_of(group, column, (bounds[first], bounds[last]), ends, labels, budget))
    return found


def _span(
    typical: int, count: int, bounds: Sequence[int], group: GroupTimeline, column: int, budget: int
) -> tuple[int, int]:
    """The first and the last boundary of the steps to show."""
    first, last = typical, typical + 1
    while last - first < _MOST_STEPS:
        wider = (first, last + 1) if last < count else (first - 1, last)
        if wider[0] < 0 or count_events(group, column, (bounds[wider[0]], bounds[wider[1]])) > budget:
            break
        first, last = wider
    return first, last


def _mesh(result: Result) -> list[MeshDimension]:
    """The mesh of all communicators, if it has several dimensions with strides. Communicators of equal size and stride
    that together have every rank once, such as all tensor-parallel ones, are those of one dimension."""
    world_size = result.timeline.world_size
    found = {
        id(members): members
        for group in result.timeline.groups
        for communicators in group.communicators
        for members in communicators.values()
        if 1 < len(members) < world_size
    }
    kinds: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for members in found.values():
        kinds.setdefault((len(members), members[1] - members[0]), set()).add(members)
    complete = [
        each
        for _, alike in sorted(kinds.items())
        if sum(map(len, alike)) == world_size == len(set().union(*alike))
        for each in sorted(alike)
    ]
    mesh = mesh_of(world_size, complete)
    ranks = np.arange(world_size)
    dimensions = []
    for size, coordinate in zip(mesh.sizes, mesh.coordinates.T, strict=True):
        stride = int(np.argmax(coordinate > 0))
        if (coordinate != ranks // stride % size).any():
            return []
        dimensions.append(MeshDimension(size, stride))
    return sorted(dimensions, key=lambda each: each.stride) if len(dimensions) > 1 else []


def _peaks(result: Result) -> list[int]:
    peaks = np.zeros(result.timeline.world_size, dtype=np.int64)
    for peak, ranks in zip(result.memory.peaks, result.memory.ranks, strict=True):
        peaks[ranks] = peak.total
    found: list[int] = peaks.tolist()
    return found


def _memory(result: Result, drawn: Sequence[int]) -> list[MemoryView]:
    found = []
    for rank in drawn:
        curve = memory_curve(result.timeline, rank, _MOST_POINTS)
        peak = result.memory.of_rank(rank)
        if peak is None or not len(curve.ns):
            continue
        outside = peak.context + peak.nccl + peak.workspaces
        found.append(MemoryView(rank, curve.ns.tolist(), curve.allocated.tolist(), curve.reserved.tolist(), outside))
    return found


def _traffic(result: Result) -> TrafficView:
    traffic = result.traffic
    unit, blocks = traffic.between.removesuffix("s"), ""
    if traffic.between.startswith("blocks"):
        unit, blocks = "block", f", in {traffic.between}"
    sources, targets = np.nonzero(traffic.matrix)
    entries = np.stack((sources, targets, traffic.matrix[sources, targets]), axis=1).reshape(-1)
    how = (
        f"Bytes that each {unit} sends to each other {unit} in a step{blocks}, counted as {traffic.method}. "
        f"Within nodes {bytes_text(traffic.sent_within_nodes)}, between nodes {bytes_text(traffic.sent_between_nodes)}."
    )
    if not len(entries):
        how = "The ranks send each other nothing."
    return TrafficView(unit, len(traffic.matrix), entries.tolist(), how)


def _origins(result: Result) -> list[Share]:
    shares = [Share(of.value, of.value, _ORIGINS[of.value], ns) for of, ns in result.origins.kernels.items()]
    shares += [
        Share("network", f"network model, {of}", "collectives and send/recv", ns)
        for of, ns in result.origins.network.items()
    ]
    return shares


def _network(result: Result) -> str:
    parameters = result.timeline.settings.load_cluster().parameters
    about = "; ".join(filter(None, [parameters.data, parameters.error]))
    spread = f"The expected error of a kernel's time is {share_text(result.origins.spread)}, weighted by time. "
    lacking = (
        f"Kernels without a model: {result.kernels_without_model.text}. " if result.kernels_without_model.text else ""
    )
    return f"{spread}{lacking}Network parameters: {parameters.origin}{f' ({about})' if about else ''}."


def _number(count: int, one: str) -> str:
    return f"{count:,} {one}{'s' if count != 1 else ''}"


def _time(ns: int) -> str:
    return _micro(time_text(ns))


def _micro(text: str) -> str:
    """With the letter µ, which a terminal may lack."""
    return re.sub(r"(?<=\d) us\b", " µs", text)
