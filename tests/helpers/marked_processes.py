"""Finds the processes of a job by a variable in their environment."""

from __future__ import annotations

from pathlib import Path


def processes_with(mark: str) -> list[str]:
    """Processes that have it in the environment they were started with, or inherited it by a fork."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_text().replace("\0", " ")
                found.append(f"process {entry.name} ({(entry / 'comm').read_text().strip()}): {command}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
