"""A result as `prediction` in summary.json. docs/results.md says what every key means.

Times are integer nanoseconds, sizes bytes, shares numbers from 0 to 1. Keys are always in the same order, and the same
timeline gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maya.results.memory import Peak
from maya.results.origins import OriginItem, top_items
from maya.results.result import Result
from maya.results.time_classes import CLASSES
from maya.util.ranks import format_strided

_TOP = 10
_DIGITS = 6  # decimals of shares and rates
MOST_LISTED = 4096  # ranks that are listed one by one; of more, those with equal figures share an entry


def prediction_json(result: Result) -> dict[str, Any]:
    """The table of a result."""
    timeline, breakdown = result.timeline, result.breakdown
    slowest = breakdown.slowest
    return {
        "gpu": timeline.device.key,
        "cluster": timeline.settings.cluster,
        "network": timeline.settings.network,
        "host_time": timeline.settings.host_time,
        "steps": _steps(result),
        "throughput": _throughput(result),
        "classes": [name.value for name in CLASSES],
        "ranks": _ranks(result),
        "median_rank": breakdown.median_rank,
        "fastest_rank": breakdown.fastest_rank,
        "slowest_rank": {
            "rank": slowest.rank,
            "own_ns": slowest.own_ns,
            "median_own_ns": slowest.median_ns,
            "reason": None if slowest.reason is None else slowest.reason.value,
            "difference_ns": slowest.difference_ns,
        },
        "exposed_communication": [
            {"call": call, "ranks": members, "ns": ns} for (call, members), ns in result.exposed.mean_ns().items()
        ],
        "rank_classes": _rank_classes(result),
        "memory": {
            "capacity_bytes": result.memory.capacity,
            "worst_rank": result.memory.worst_rank,
            "worst": _peak(result.memory.of_rank(result.memory.worst_rank)),
        },
        "traffic": {
            "method": result.traffic.method,
            "between": result.traffic.between,
            "bytes_per_step": result.traffic.matrix.tolist(),
            "within_nodes_bytes_per_step": result.traffic.sent_within_nodes,
            "between_nodes_bytes_per_step": result.traffic.sent_between_nodes,
            "calls_per_rank_and_step": [
                {"call": name, "times": times, "bytes": size} for name, times, size in result.traffic.calls
            ],
        },
        "origins": {
            "kernels_ns": {origin.value: ns for origin, ns in result.origins.kernels.items()},
            "network_ns": result.origins.network,
            "spread": round(result.origins.spread, _DIGITS),
            "without_model": _kernels_without_model(result),
        },
        "routing": _routing(result),
        "problems": list(timeline.problems),
    }


def _routing(result: Result) -> dict[str, Any] | None:
    found = result.routed_time
    if found is None:
        return None
    return {"kernels_ns": found.kernels_ns, "network_ns": found.network_ns, "time_share": round(found.share, _DIGITS)}


def _kernels_without_model(result: Result) -> dict[str, Any]:
    found = result.kernels_without_model
    return {
        "launches": found.launches,
        "launch_share": round(found.launch_share, _DIGITS),
        "bytes": found.bytes,
        "byte_share": round(found.byte_share, _DIGITS),
        "ns": found.ns,
        "time_share": round(found.time_share, _DIGITS),
        "matrix_byte_share": round(found.matrix_byte_share, _DIGITS),
        "most_bytes": {"kernel": found.name, "place": found.place, "bytes": found.name_bytes} if found.name else None,
        "could_matter": found.could_matter,
    }


def _steps(result: Result) -> dict[str, Any]:
    steps = result.steps
    return {
        "source": steps.source,
        "count": steps.count,
        "warm_up": steps.warm_up,
        "measured": list(steps.measured),
        "skipped": list(steps.skipped),
        "median_ns": steps.median_ns,
        "lengths_ns": list(steps.lengths_ns),
        "note": steps.note,
    }


def _throughput(result: Result) -> dict[str, Any]:
    speed = result.throughput
    samples = speed.samples
    return {
        "gpus": speed.gpus,
        "samples_per_step": None if samples is None else samples.per_step,
        "unit": None if samples is None else samples.unit,
        "source": None if samples is None else samples.source,
        "not_known": speed.no_samples or None,
        "samples_per_second": _rounded(speed.samples_per_second),
        "samples_per_second_per_gpu": _rounded(speed.samples_per_second_per_gpu),
        "flops_per_step": speed.flops_per_step,
        "recomputed_flops_per_step": speed.recomputed_flops_per_step,
        "mfu": _rounded(speed.mfu),
        "hfu": _rounded(speed.hfu),
        "gpu_hours_per_step": speed.gpu_hours_per_step,
        "gpu_hours_per_billion": _rounded(speed.gpu_hours_per_billion),
        "price_per_gpu_hour": speed.price_per_gpu_hour,
        "price_per_step": speed.price_per_step,
        "price_per_billion": _rounded(speed.price_per_billion),
    }


def _ranks(result: Result) -> list[dict[str, Any]]:
    """The figures of every rank; in a large job, of ranks that have the same."""
    world_size = result.timeline.world_size
    if world_size <= MOST_LISTED:
        return [{"rank": rank, **_rank(result, rank)} for rank in range(world_size)]
    memory = np.full((world_size, 1), -1, dtype=np.int64)
    for number, ranks in enumerate(result.memory.ranks):
        memory[ranks] = result.memory.peaks.index(result.memory.peaks[number])
    breakdown = result.breakdown
    columns = (breakdown.mean_communication_ns[:, None], breakdown.mean_hidden_ns[:, None], memory)
    _, first, which = np.unique(
        np.concatenate((breakdown.mean_ns, *columns), axis=1), axis=0, return_index=True, return_inverse=True
    )
    by_figures = np.split(np.argsort(which.reshape(-1), kind="stable"), np.cumsum(np.bincount(which.reshape(-1)))[:-1])
    return [
        {"ranks": format_strided(by_figures[at].tolist()), **_rank(result, int(first[at]))}
        for at in np.argsort(first).tolist()
    ]


def _rank(result: Result, rank: int) -> dict[str, Any]:
    breakdown = result.breakdown
    peak = result.memory.of_rank(rank)
    return {
        "step_ns": int(breakdown.mean_ns[rank].sum()),
        "time_ns": breakdown.mean_ns[rank].tolist(),
        "communication_ns": int(breakdown.mean_communication_ns[rank]),
        "hidden_ns": int(breakdown.mean_hidden_ns[rank]),
        "memory_bytes": None if peak is None else [peak.allocated, peak.reserved, peak.total],
    }


def _peak(peak: Peak | None) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {
        "allocated_bytes": peak.allocated,
        "reserved_bytes": peak.reserved,
        "reserved_known": peak.reserved_known,
        "workspaces_bytes": peak.workspaces,
        "nccl_bytes": peak.nccl,
        "context_bytes": peak.context,
        "total_bytes": peak.total,
    }


def _rank_classes(result: Result) -> list[dict[str, Any]]:
    """The ranks that spend most time in a step on the same: one rank class of the replay, or several that differ
    elsewhere, such as a rank that logs at the end of the job."""
    classes: dict[int, list[int]] = {}  # ranks, by the number of the class's first replay group
    first: dict[int, int] = {}
    for number, group in enumerate(result.timeline.groups):
        classes.setdefault(first.setdefault(id(group.rank_class), number), []).extend(group.ranks.tolist())
    found: dict[tuple[OriginItem, ...], list[int]] = {}
    for number, ranks in classes.items():
        found.setdefault(tuple(top_items(result.timeline, result.steps, number, _TOP)), []).extend(ranks)
    return [
        {
            "ranks": sorted(ranks) if result.timeline.world_size <= MOST_LISTED else format_strided(sorted(ranks)),
            "most_time": [_top_item(item) for item in items],
        }
        for items, ranks in found.items()
    ]


def _top_item(item: OriginItem) -> dict[str, Any]:
    return {
        "what": item.what,
        "op": item.op,
        "class": item.time_class.value,
        "times": item.times,
        "ns": item.ns,
        "origin": item.origin,
        "detail": item.detail,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
