"""Which ranks did the same: the trace files of a run's folder -> one `Behaviour` for each distinct course of events.

Every trace is outlined; one of those with the same outline is read in full. Outlines that differ may still mean the
same, see `outline.refined_digest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from coordinator.timeline.outline import Born, Outline, outline, refined_digest, trace_files
from coordinator.timeline.outlines_file import load_outlines, save_outlines
from maya.estimators.features.from_trace import TracedWorks, works_of
from maya.estimators.work import Work
from maya.trace import Trace, read


@dataclass(frozen=True)
class Communicator:
    """Alike on all its ranks: its members in order, and which of those with the same members it is."""

    members: tuple[int, ...]
    instance: int


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Ranks whose traces say the same."""

    trace: Trace  # of the first of them
    traced: TracedWorks
    ranks: list[int] = field(default_factory=list)
    communicators: list[dict[int, Communicator]] = field(default_factory=list)  # of each of the ranks, by number


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
    for rank, found in outlines_of(folder, files, allocations=allocations):
        if found.problem:
            problems.append(f"rank {rank} is left out: {found.problem}")
            continue
        behaviour = by_outline.get(found.digest)
        if behaviour is None:
            trace = read(files[rank])
            traced = works_of(trace, inductor)
            numbers = [works.setdefault(_key(item.work), len(works)) for item in traced.works]
            each = np.array(numbers, dtype=np.int64)[traced.which] if numbers else np.zeros(0, dtype=np.int64)
            meaning = refined_digest(trace, each, allocations=allocations)
            behaviour = by_meaning.setdefault(meaning, Behaviour(trace, traced))
            by_outline[found.digest] = behaviour
        behaviour.ranks.append(rank)
        behaviour.communicators.append({number: _communicator(born) for number, born in found.communicators.items()})
    return list(by_meaning.values()), problems


def _key(work: Work) -> tuple[object, ...]:
    sizes = (work.flops, work.bytes_read, work.bytes_written)
    return (work.kind, work.dtype, work.variant, *sizes, *work.shape, *work.shape.values())


def _outlines(folder: Path, files: dict[int, Path]) -> Iterator[tuple[int, Outline]]:
    """Of all ranks, in their order; those of a large run are kept for the next replay of it."""
    if sum(path.stat().st_size for path in files.values()) < _WORTH_PROCESSES:
        yield from _made_outlines(folder, files)
        return
    kept = load_outlines(folder, files)
    if len(kept) < len(files):
        kept = dict(_made_outlines(folder, files))
        save_outlines(folder, files, kept)
    yield from ((rank, kept[rank]) for rank in files)


def _made_outlines(folder: Path, files: dict[int, Path]) -> Iterator[tuple[int, Outline]]:
    processes = min(os.cpu_count() or 1, len(files))
    if processes < 2 or sum(path.stat().st_size for path in files.values()) < _WORTH_PROCESSES:
        for rank, path in files.items():
            yield rank, outline(path)
        return
    command = [sys.executable, "-m", "coordinator.timeline.outline", str(folder)]
    with ExitStack() as stack:
        readers = [
            stack.enter_context(
                subprocess.Popen([*command, str(first), str(processes)], stdout=subprocess.PIPE, env=_environment())
            )
            for first in range(processes)
        ]
        stack.callback(_end, readers)
        for at, rank in enumerate(files):
            stream = readers[at % processes].stdout
            assert stream is not None
            line = stream.readline()
            if not line:
                yield rank, outline(files[rank])  # says what is wrong with the file
                raise ChildProcessError(f"the process that read {files[rank]} ended; run this again")
            found_rank, digest, communicators = json.loads(line)
            assert found_rank == rank
            yield rank, Outline(bytes.fromhex(digest), {number: (born[0], born[1]) for number, born in communicators})


def _environment() -> dict[str, str]:
    """So that a child finds this very package."""
    root = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root, "OPENBLAS_NUM_THREADS": "1"}


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()


@lru_cache(maxsize=1 << 16)
def _communicator(born: Born) -> Communicator:
    return Communicator(_parse_members(born[0]), born[1])


@lru_cache(maxsize=1 << 12)
def _parse_members(text: str) -> tuple[int, ...]:
    """The ranks in "0-7", "0-56:8", "3,1"."""
    members: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        members.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(members)
