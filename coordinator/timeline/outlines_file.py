"""Outlines of a run's traces, kept in its folder: a replay need not read what has not changed since the last one.

In: outlines as they are made. Out: those of traces whose files still have the same size and time of change. A file that
is missing, of another version or damaged is as good as none, and a folder that cannot be written stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from coordinator.timeline.outline import Outline

FILE = "outlines.json"
VERSION = 1  # to be raised when outline.digest heeds something else


def load_outlines(folder: Path, files: Mapping[int, Path]) -> dict[int, Outline]:
    """Of the ranks whose traces are as they were."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            return {}
        return {
            rank: Outline(bytes.fromhex(digest), {number: (born[0], born[1]) for number, born in communicators})
            for rank, size, changed, digest, communicators in content["ranks"]
            if rank in files and _state(files[rank]) == (size, changed)
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}


def save_outlines(folder: Path, files: Mapping[int, Path], outlines: Mapping[int, Outline]) -> None:
    """Under another name first, so that whoever finds it finds it complete."""
    ranks = [
        [rank, *_state(files[rank]), found.digest.hex(), list(found.communicators.items())]
        for rank, found in sorted(outlines.items())
    ]
    temporary = folder / f"{FILE}.tmp"
    try:
        temporary.write_text(json.dumps({"version": VERSION, "ranks": ranks}), encoding="utf-8")
        temporary.replace(folder / FILE)
    except OSError:
        temporary.unlink(missing_ok=True)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns
