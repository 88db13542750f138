"""The digests of all traces of a run. For large runs several processes compute them, and a file keeps them.

The file is trace_digests.json in the run's folder: one line for each trace, and the sizes and times of all trace files,
so that a later replay does not read unchanged traces again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from maya.replay.trace_digest import VERSION, TraceDigest, digest_of
from maya.util.files import write_atomically

FILE = "trace_digests.json"
_WORTH_KEEPING = 32 << 20  # bytes of traces; fewer take less than a second to read


def digests_of(folder: Path, files: Mapping[int, Path], *, allocations: bool) -> Iterator[tuple[int, TraceDigest]]:
    """The digests of the ranks' traces, in the order of ranks."""
    states = {rank: path.stat() for rank, path in files.items()}
    if sum(state.st_size for state in states.values()) < _WORTH_KEEPING:
        for rank, path in files.items():
            yield rank, digest_of(path, allocations=allocations)
        return
    stamps = {rank: [state.st_size, state.st_mtime_ns] for rank, state in states.items()}
    kept = _load(folder, stamps, allocations=allocations)
    if kept is None:
        kept = dict(_by_processes(folder, files, allocations=allocations))
        _save(folder, kept, stamps, allocations=allocations)
    yield from kept.items()


def _load(folder: Path, stamps: Mapping[int, list[int]], *, allocations: bool) -> dict[int, TraceDigest] | None:
    """The kept digests, or None if they are missing or the traces have changed."""
    try:
        first, *lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
        if json.loads(first) != _head(stamps, allocations=allocations):
            return None
        return dict(map(TraceDigest.of_line, lines))
    except (OSError, ValueError):
        return None


def _save(
    folder: Path, digests: Mapping[int, TraceDigest], stamps: Mapping[int, list[int]], *, allocations: bool
) -> None:
    """Keep the digests. In a read-only folder the next replay reads the traces again."""
    lines = [
        json.dumps(_head(stamps, allocations=allocations)),
        *(found.line(rank) for rank, found in digests.items()),
    ]
    with suppress(OSError):
        write_atomically(folder / FILE, "\n".join(lines) + "\n")


def _head(stamps: Mapping[int, list[int]], *, allocations: bool) -> dict[str, object]:
    return {"version": VERSION, "allocations": allocations, "files": [[rank, *stamp] for rank, stamp in stamps.items()]}


def _by_processes(folder: Path, files: Mapping[int, Path], *, allocations: bool) -> Iterator[tuple[int, TraceDigest]]:
    processes = min(os.cpu_count() or 1, len(files))
    command = [sys.executable, "-m", "maya.replay.trace_digest", str(folder.resolve())]
    root = Path(__file__).parents[2]  # python -m finds this package there, whatever is in the user's folder
    with ExitStack() as stack:
        readers = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(first), str(processes), str(int(allocations))],
                    stdout=subprocess.PIPE,
                    cwd=root,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            )
            for first in range(processes)
        ]
        stack.callback(_end, readers)
        for at, rank in enumerate(files):
            stream = readers[at % processes].stdout
            assert stream is not None
            line = stream.readline()
            if not line:
                raise ChildProcessError(f"the process that was to read {files[rank]} ended; run this again")
            found_rank, found = TraceDigest.of_line(line)
            assert found_rank == rank
            yield rank, found


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
