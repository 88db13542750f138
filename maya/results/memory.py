"""How much device memory every rank needs, at its peak and over time.

In: a `Timeline`. Out: a `MemoryUse`. Allocated and reserved bytes of PyTorch's allocator (`max_memory_allocated`,
`max_memory_reserved`) are exact, from the trace. A process also has the CUDA context, NCCL's buffers (an estimate, the
same as in the virtual GPU), and memory from other sources than the allocator: workspaces of libraries, and the script's
own cudaMalloc. The sum is what `nvidia-smi` would show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from maya.replay.timeline import GroupTimeline, Timeline
from maya.trace import RecordKind, Trace
from maya.util.arrays import Booleans, Indices, Integers

# The same as in rank_runtime/shim/nccl_memory.c.
_CHANNELS = 16
_BUFFER_BYTES = 4 << 20
_LINE_BUFFERS = 8 * 640 * 120 * 8 + 8 * 512 * 8 * 16
_GRANULARITY = 2 << 20


@dataclass(frozen=True)
class Peak:
    """The peak of one rank, in bytes. Parts are taken at the moment when their sum is largest."""

    allocated: int  # at its own peak
    reserved: int  # at its own peak
    workspaces: int  # from other sources than the allocator
    nccl: int
    context: int
    total: int
    at_record: int  # position in the trace at which the sum is largest
    reserved_known: bool = True  # False: the allocator uses calls that are not recorded (cudaMallocAsync)


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Memory of all ranks. The ranks of a class need the same."""

    capacity: int  # of the device
    peaks: tuple[Peak, ...]  # for each of timeline.groups
    ranks: tuple[npt.NDArray[np.int32], ...]  # for each group

    def of_rank(self, rank: int) -> Peak | None:
        """The peak of a rank. None: the rank did nothing on its GPU."""
        return self._by_rank.get(rank)

    @cached_property
    def _by_rank(self) -> dict[int, Peak]:
        return {rank: peak for peak, ranks in zip(self.peaks, self.ranks, strict=True) for rank in ranks.tolist()}

    @property
    def worst_rank(self) -> int:
        """The first rank of those that need most."""
        most = max((peak.total for peak in self.peaks), default=0)
        at_most = [int(ranks[0]) for peak, ranks in zip(self.peaks, self.ranks, strict=True) if peak.total == most]
        return min(at_most, default=0)


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Memory of one rank over time: values from each time on."""

    ns: Integers
    allocated: Integers
    reserved: Integers


@dataclass(frozen=True, eq=False)
class _Levels:
    """Memory after each record that changes it."""

    records: Indices
    allocated: Integers
    reserved: Integers
    workspaces: Integers
    nccl: Integers


def find_memory(timeline: Timeline, variables: Mapping[str, str] | None = None) -> MemoryUse:
    """The memory of all ranks. `variables`: NCCL_* variables; by default those of the job's settings."""
    variables = timeline.settings.nccl if variables is None else variables
    by_rank_class = {
        id(rank_class): _peak(_levels(rank_class.trace, variables), timeline.device.context_bytes)
        for rank_class in timeline.rank_classes
    }
    peaks = tuple(by_rank_class[id(group.rank_class)] for group in timeline.groups)
    return MemoryUse(timeline.device.memory_bytes, peaks, tuple(group.ranks for group in timeline.groups))


def _peak(levels: _Levels, context: int) -> Peak:
    sums = levels.reserved + levels.workspaces + levels.nccl
    if not len(sums):
        return Peak(0, 0, 0, 0, context, context, 0)
    at = int(sums.argmax())
    allocated, reserved = int(levels.allocated.max()), int(levels.reserved.max())
    known = reserved >= allocated
    return Peak(
        allocated=allocated,
        reserved=reserved if known else allocated,
        workspaces=int(levels.workspaces[at]),
        nccl=int(levels.nccl[at]),
        context=context,
        total=context + int(sums[at]) + (0 if known else allocated - reserved),
        at_record=int(levels.records[at]),
        reserved_known=known,
    )


def memory_curve(timeline: Timeline, rank: int, most_points: int = 2000) -> MemoryCurve:
    """Memory of a rank over time, in at most `most_points` points that include the peaks."""
    group = next((group for group in timeline.groups if rank in group.ranks), None)
    if group is None:
        nothing = np.zeros(0, dtype=np.int64)
        return MemoryCurve(nothing, nothing, nothing)
    levels = _levels(group.rank_class.trace, timeline.settings.nccl)
    ns = _host_ns(timeline, group, rank, levels.records)
    if len(ns) > most_points:
        pieces = np.array_split(np.arange(len(ns)), most_points)
        chosen = np.array([piece[levels.allocated[piece].argmax()] for piece in pieces])
    else:
        chosen = np.arange(len(ns))
    return MemoryCurve(ns[chosen], levels.allocated[chosen], levels.reserved[chosen])


def _host_ns(timeline: Timeline, group: GroupTimeline, rank: int, positions: Indices) -> Integers:
    """When the host reached these records: from the rank's detail, or else the launch before each of them."""
    detail = timeline.details.get(rank)
    if detail is not None:
        found: Integers = np.maximum.accumulate(detail.host_ns[positions]) if len(positions) else detail.host_ns[:0]
        return found
    launched = np.concatenate((np.zeros(1, dtype=np.int64), group.launched_ns[:, 0]))
    before = np.searchsorted(group.rank_class.records, positions, side="right")
    return np.maximum.accumulate(launched)[before]


def _levels(trace: Trace, variables: Mapping[str, str]) -> _Levels:
    records = trace.records
    kinds = (RecordKind.MALLOC, RecordKind.FREE, RecordKind.BLOCK_ALLOC, RecordKind.BLOCK_FREE, RecordKind.COLLECTIVE)
    positions = np.flatnonzero(np.isin(records["kind"], np.array(kinds, dtype=np.uint8)))
    chosen = records[positions]
    sizes = _sizes(trace, chosen, variables)
    of_allocator = _from_allocator(trace, positions)
    changes = np.zeros((4, len(positions)), dtype=np.int64)
    blocks: dict[int, int] = {}
    regions: dict[int, tuple[int, int]] = {}
    rows = zip(chosen["kind"].tolist(), chosen["value"].tolist(), sizes, of_allocator.tolist(), strict=True)
    for at, (kind, value, size, own) in enumerate(rows):
        if kind == RecordKind.BLOCK_ALLOC:
            blocks[value] = size
            changes[0, at] = size
        elif kind == RecordKind.BLOCK_FREE:
            changes[0, at] = -blocks.pop(value, 0)
        elif kind == RecordKind.MALLOC:
            regions[value] = (1 if own else 2, size)
            changes[regions[value][0], at] = size
        elif kind == RecordKind.FREE:
            column, size = regions.pop(value, (1, 0))
            changes[column, at] = -size
        else:
            changes[3, at] = size
    allocated, reserved, workspaces, nccl = np.cumsum(changes, axis=1)
    return _Levels(positions, allocated, reserved, workspaces, nccl)


def _sizes(trace: Trace, records: npt.NDArray[np.void], variables: Mapping[str, str]) -> list[int]:
    """The bytes that each record allocates; for a communicator init, NCCL's buffers."""
    numbers, which = np.unique(records["signature"], return_inverse=True)
    sizes = []
    for number in numbers.tolist():
        signature = trace.signature(number)
        if "members" in signature:
            sizes.append(nccl_bytes(int(signature.get("ranks", 1)), variables))
        else:
            sizes.append(int(signature.get("bytes", 0)) if "call" not in signature else 0)
    return [sizes[at] for at in which.reshape(-1).tolist()]


def nccl_bytes(ranks: int, variables: Mapping[str, str]) -> int:
    """The buffers of one communicator. Split communicators do not share buffers unless torch is told so."""
    if ranks == 1:
        return 0
    channels = min(_positive(variables, "NCCL_MAX_NCHANNELS", _CHANNELS), _CHANNELS)
    size = channels * (_positive(variables, "NCCL_BUFFSIZE", _BUFFER_BYTES) + _LINE_BUFFERS)
    return -(-size // _GRANULARITY) * _GRANULARITY


def _positive(variables: Mapping[str, str], name: str, otherwise: int) -> int:
    text = variables.get(name, "")
    return int(text) if text.isdigit() and int(text) > 0 else otherwise


def _from_allocator(trace: Trace, positions: Indices) -> Booleans:
    """Whether memory is allocated by PyTorch's caching allocator: it hands out a block of it immediately, on the same
    thread. An expandable segment maps several pieces before that, and may unmap others first."""
    records = trace.records
    found = np.zeros(len(positions), dtype=bool)
    mapped_signatures = [
        number
        for number in np.unique(records["signature"][positions]).tolist()
        if trace.signature(number).get("mapped")
    ]
    is_malloc = records["kind"] == RecordKind.MALLOC
    is_mapped = is_malloc | (records["kind"] == RecordKind.FREE)
    is_mapped &= np.isin(records["signature"], np.array(mapped_signatures, dtype=np.uint32))
    for thread in np.unique(records["thread"]).tolist():
        own = np.flatnonzero(records["thread"] == thread)
        mapped = is_mapped[own]
        gives = np.append(records["kind"][own] == RecordKind.BLOCK_ALLOC, False)
        places = np.append(np.where(mapped, len(own), np.arange(len(own))), len(own))
        after_mapping = np.minimum.accumulate(places[::-1])[::-1]  # for each place, the next one that maps nothing
        following = np.where(mapped, after_mapping[1:], np.arange(1, len(own) + 1))
        found[np.searchsorted(positions, own[is_malloc[own] & gives[following]])] = True
    return found
