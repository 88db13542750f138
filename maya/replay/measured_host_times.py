"""CPU times of the script's own code, without the noise of a single run: --host-time measured.

In: the ranks of a class, whose traces hold the CPU time before every record. Out: one time in ns for each record that
is replayed.

All steps do the same, and so do all ranks of the class; they differ by interrupts, page faults, caches and first-time
work. So each record gets the median of all records at the same place: records that follow the same few records of
their threads, as the first, second, … such record of a step. An optimizer ends a step. The first step does not count at
places that later steps have as well. A place that occurs once per rank gets the median over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from maya.replay.rank_class import RankClass
from maya.replay.record_kinds import REPLAYED_KINDS, REPLAYED_KINDS_WITHOUT_ALLOCATIONS
from maya.replay.run_settings import SettingsError
from maya.replay.thread_groups import Columns, thread_groups
from maya.trace import RecordKind, Trace
from maya.trace.reader import HostTimes, read_columns
from maya.util.arrays import Booleans, Indices, Integers

_COLUMNS = ("kind", "thread", "signature")
_MOST_RANKS = 16  # used for medians; more ranks do not change them
_BEFORE = 8  # records that identify a place, including the record itself
_STEP = "Optimizer.step#"
_ODD = np.uint64(0x9E3779B97F4A7C15)  # multiplying by it spreads a number over all bits


def typical_host_times(rank_class: RankClass, steps_from: str | None, *, allocations: bool) -> Integers:
    """A time for each record of the class's trace; 0 for records that are not replayed."""
    trace = rank_class.trace
    replayed = REPLAYED_KINDS if allocations else REPLAYED_KINDS_WITHOUT_ALLOCATIONS
    kept = np.flatnonzero(replayed[trace.records["kind"]])
    places, counts = _places(trace, kept, steps_from)
    samples = [
        _times_of(rank_class.trace.path.parent / f"rank{rank}.trace", replayed)
        for rank in _some_ranks(rank_class.ranks)
    ]
    values = np.concatenate([sample[counts] for sample in samples])
    found = np.zeros(len(trace.records), dtype=np.int64)
    found[kept] = _medians(np.tile(places[counts], len(samples)), values)[places]
    return found


def _some_ranks(ranks: Sequence[int]) -> Sequence[int]:
    return [ranks[at * len(ranks) // _MOST_RANKS] for at in range(_MOST_RANKS)] if len(ranks) > _MOST_RANKS else ranks


def _times_of(path: Path, replayed: Booleans) -> Integers:
    """For each replayed record of a trace, the time that its thread group spent since the last one."""
    found = read_columns(path, _COLUMNS)
    times = found.host_times()
    if times is None:
        raise SettingsError(
            f"{path} holds no CPU times; run the job with --host-time measured, or replay it with --host-time model"
        )
    return _passed_on(found.columns, times, thread_groups(found.columns, found.strings), replayed)


def _passed_on(records: Columns, times: HostTimes, groups: npt.NDArray[np.int64], replayed: Booleans) -> Integers:
    """Add the times of records that are not replayed to the next one that is."""
    kept = np.flatnonzero(replayed[records["kind"]])
    of_record = groups[records["thread"]]
    passed = np.zeros(len(kept), dtype=np.int64)
    for group in np.unique(of_record[kept]).tolist():
        inside = of_record == group
        own = inside[kept]
        passed[own] = np.diff(np.cumsum(np.where(inside, times, 0))[kept[own]], prepend=0)
    return passed


def _places(trace: Trace, kept: Indices, steps_from: str | None) -> tuple[Indices, Booleans]:
    """For each kept record the number of its place, and whether its time counts there."""
    records = trace.records[kept]
    groups = thread_groups(trace.records, trace.strings)[records["thread"]]
    step = np.searchsorted(step_ends(trace, steps_from), kept)
    context = np.zeros(len(kept), dtype=np.uint64)
    for group in np.unique(groups).tolist():
        own = np.flatnonzero(groups == group)
        context[own] = _contexts(records[own], group)
    # The number of earlier records with the same context in the step distinguishes layers.
    order = np.lexsort((np.arange(len(kept)), step, context))
    again = np.diff(context[order], prepend=context[order][:1]) == 0
    again &= np.diff(step[order], prepend=step[order][:1]) == 0
    at = np.arange(len(kept))
    occurrence = np.empty(len(kept), dtype=np.intp)
    occurrence[order] = at - np.maximum.accumulate(np.where(again & (at > 0), 0, at))
    context += occurrence.astype(np.uint64) * _ODD
    places = np.unique(context, return_inverse=True)[1].reshape(-1)
    later = np.zeros(int(places.max(initial=-1)) + 1, dtype=bool)
    later[places[step > 0]] = True
    return places, (step > 0) | ~later[places]


def _contexts(records: npt.NDArray[np.void], group: int) -> npt.NDArray[np.uint64]:
    """For each record a hash of it and the records before it."""
    what = records["signature"].astype(np.uint64) << np.uint64(32)
    what ^= records["stream"].astype(np.uint64) << np.uint64(16) ^ records["kind"].astype(np.uint64) << np.uint64(8)
    what ^= records["flags"]
    mixed = np.full(len(records), group + 1, dtype=np.uint64)
    for back in range(min(_BEFORE, len(records))):
        mixed[back:] = (mixed[back:] ^ what[: len(what) - back]) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return mixed


def step_ends(trace: Trace, steps_from: str | None) -> Indices:
    """The positions at which annotations end that end a step."""
    positions = np.flatnonzero(trace.records["kind"] == RecordKind.ANNOTATION)
    numbers = trace.records["signature"][positions]
    names = {number: str(trace.signature(number).get("op", "")) for number in np.unique(numbers).tolist()}
    ends = [
        number
        for number, name in names.items()
        if (name.startswith(_STEP) if steps_from is None else steps_from.rstrip("#") in (name, name.partition("#")[0]))
    ]
    found: Indices = positions[np.isin(numbers, ends)]
    return found


def _medians(places: Indices, values: Integers) -> Integers:
    """The lower median of the values at each place."""
    order = np.lexsort((values, places))
    counts = np.bincount(places)
    begins = np.cumsum(counts) - counts
    found: Integers = values[order][begins + np.maximum(counts - 1, 0) // 2]
    return found
