"""The folder of an agent: its ranks write there what the launcher's folders are to get.

In: the folder for temporary files. Out: a folder that exists for as long as the agent. An agent that was killed leaves
its folder behind; the next one of the same user removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "maya-node-"
_NEW_SECONDS = 10.0


class NodeFolder:
    """A folder, locked while its agent runs."""

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Remove what ranks have written."""
        for path in self.path.iterdir():
            if path.name.isdigit():
                shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another agent has just removed it
            if path.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_new(path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _is_new(path: Path) -> bool:
    """Whether an agent may have made the folder just now, and not locked it yet."""
    return time.time() - path.stat().st_ctime < _NEW_SECONDS
