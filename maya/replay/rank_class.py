"""Which ranks did the same: the trace files of a run's folder -> one `Behaviour` for each distinct course of events.

Every trace is outlined; one of those with the same outline is read in full. Outlines that differ may still mean the
same, see `outline.refined_digest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from maya.estimators.features.from_trace import TracedKernels, kernels_of
from maya.estimators.kernel import Kernel
from maya.replay.trace_digest import Born, refined_digest, trace_files
from maya.replay.trace_digests import digests_of
from maya.trace import Trace, read


@dataclass(frozen=True)
class TracedCommunicator:
    """Alike on all its ranks: its members in order, and which of those with the same members it is."""

    members: tuple[int, ...]
    instance: int


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Ranks whose traces say the same."""

    trace: Trace  # of the first of them
    traced: TracedKernels
    ranks: list[int] = field(default_factory=list)
    communicators: list[dict[int, TracedCommunicator]] = field(default_factory=list)  # of each of the ranks, by number


def read_behaviours(
    folder: Path, inductor: Path | None = None, *, allocations: bool = False
) -> tuple[list[Behaviour], list[str]]:
    """The behaviours of a run, in the order of their first ranks, and what is wrong with traces that cannot be read. A
    rank that asked nothing of its GPU has no trace. `allocations`: cudaMalloc and cudaFree tell behaviours apart."""
    files = dict(trace_files(folder))
    by_outline: dict[bytes, Behaviour] = {}
    by_meaning: dict[bytes, Behaviour] = {}
    works: dict[tuple[object, ...], int] = {}
    problems: list[str] = []
    for rank, found in digests_of(folder, files, allocations=allocations):
        if found.problem:
            problems.append(f"rank {rank} is left out: {found.problem}")
            continue
        behaviour = by_outline.get(found.digest)
        if behaviour is None:
            trace = read(files[rank])
            traced = kernels_of(trace, inductor)
            numbers = [works.setdefault(_key(item.work), len(works)) for item in traced.works]
            each = np.array(numbers, dtype=np.int64)[traced.which] if numbers else np.zeros(0, dtype=np.int64)
            meaning = refined_digest(trace, each, allocations=allocations)
            behaviour = by_meaning.setdefault(meaning, Behaviour(trace, traced))
            by_outline[found.digest] = behaviour
        behaviour.ranks.append(rank)
        behaviour.communicators.append({number: _communicator(born) for number, born in found.communicators.items()})
    return list(by_meaning.values()), problems


def _key(work: Kernel) -> tuple[object, ...]:
    sizes = (work.flops, work.bytes_read, work.bytes_written)
    return (work.kind, work.dtype, work.variant, *sizes, *work.shape, *work.shape.values())


@lru_cache(maxsize=1 << 16)
def _communicator(born: Born) -> TracedCommunicator:
    return TracedCommunicator(_parse_members(born[0]), born[1])


@lru_cache(maxsize=1 << 12)
def _parse_members(text: str) -> tuple[int, ...]:
    """The ranks in "0-7", "0-56:8", "3,1"."""
    members: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        members.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(members)
