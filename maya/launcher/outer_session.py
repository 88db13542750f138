"""maya-torchrun below `maya exec`: the launcher predicts its job itself, and tells the session so.

In: the environment of the launcher; the session's folder. Out: a file in that folder, until the session has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_NAME = "has-own-jobs"


def note_own_job(environment: Mapping[str, str]) -> None:
    """Tell the session that this process runs below, if it does."""
    trace = environment.get("MAYA_TRACE", "")
    if environment.get("MAYA_LATE_RANKS") == "1" and trace:
        with suppress(OSError):
            (Path(trace).parent / _NAME).touch()


def take_own_jobs(folder: Path) -> bool:
    """Whether a launcher below the session has run a job of its own."""
    path = folder / _NAME
    found = path.exists()
    path.unlink(missing_ok=True)
    return found
