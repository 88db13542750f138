"""Compiled objects, kept by a digest of their inputs, so that a changed source costs only its own compilation.

In: a digest of compiler, flags, source and headers. Out: the object compiled from exactly these, if it is kept.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path


class ObjectStore:
    """A folder of objects named by digest; any number of processes may use it."""

    def __init__(self, folder: Path, *, reuse: bool) -> None:
        self.folder = folder
        self.reuse = reuse  # False: everything is compiled again and kept
        folder.mkdir(exist_ok=True)

    def fetch(self, digest: str, target: Path) -> bool:
        """Copy the object of `digest` to `target`; False if there is none."""
        if not self.reuse:
            return False
        kept = self.folder / f"{digest}.o"
        try:
            shutil.copyfile(kept, target)
            os.utime(kept)
        except FileNotFoundError:
            return False
        return True

    def keep(self, digest: str, source: Path) -> None:
        """Keep a copy of the object at `source`, written atomically (temporary file, then rename)."""
        partial = self.folder / f"{digest}.{os.getpid()}"
        shutil.copyfile(source, partial)
        partial.replace(self.folder / f"{digest}.o")

    def prune(self, unused_seconds: float) -> None:
        """Remove objects that were not used for `unused_seconds`."""
        oldest = time.time() - unused_seconds
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process may prune at the same time
                if path.stat().st_mtime < oldest:
                    path.unlink()
