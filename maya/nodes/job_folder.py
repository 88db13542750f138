"""The folder of a job, which the script and its modules are read from on every node.

In: the current folder, the script, PYTHONPATH. Out: which folder that is, what does not belong to it, and a digest by
which a machine knows that it has the same folder at the same path: it shares a file system with the launcher, or has a
faithful copy. Such a machine uses the folder itself; the others get a copy through Ray.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Runs, what version control and tools keep, and virtual environments. Patterns as in .gitignore.
EXCLUDED = ("maya-runs/", ".git/", ".hg/", ".venv/", "venv/", "__pycache__/", "*.trace")
_EXCLUDED_FOLDERS = frozenset(pattern.rstrip("/") for pattern in EXCLUDED if pattern.endswith("/"))
_MARK_OF_ENVIRONMENT = "pyvenv.cfg"


@dataclass(frozen=True)
class JobFolder:
    """A folder that a job needs on every node."""

    path: Path
    python_path: tuple[str, ...]  # the user's PYTHONPATH; relative entries are relative to the folder
    excluded: tuple[str, ...] = EXCLUDED

    def as_fields(self) -> dict[str, Any]:
        return {"path": str(self.path), "python_path": list(self.python_path), "excluded": list(self.excluded)}

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> JobFolder:
        return JobFolder(Path(fields["path"]), tuple(fields["python_path"]), tuple(fields["excluded"]))

    def python_path_in(self, folder: str) -> list[str]:
        """The user's PYTHONPATH on a machine that has this folder at another path."""
        return [
            str(Path(folder) / Path(entry).relative_to(self.path)) if Path(entry).is_relative_to(self.path) else entry
            for entry in self.python_path
        ]


def choose_folder(script: str, *, is_module: bool, environment: Mapping[str, str]) -> JobFolder:
    """The current folder if the script is below it or is a module; otherwise the script's own."""
    here = Path.cwd()
    file = Path(os.path.normpath(here / script))
    # A name without a folder may be a program on PATH.
    outside = not is_module and file.is_file() and not file.is_relative_to(here)
    folder = file.parent if outside else here
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if outside:  # relative entries are relative to the current folder
        entries = [str(here / entry) for entry in entries]
    environments = (f"/{each.parent.relative_to(folder)}/" for each in _environments(folder))
    return JobFolder(folder, tuple(entries), (*EXCLUDED, *environments))


def digest_of_folder(path: str) -> str:
    """Of names, sizes and times of change of all files; empty if the folder does not exist."""
    if not Path(path).is_dir():
        return ""
    found = hashlib.sha256()
    for line in sorted(_lines(path, "")):
        found.update(line.encode(errors="surrogateescape") + b"\0")
    return found.hexdigest()


def size_of_folder(path: str) -> int:
    """Bytes in the files that belong to the job."""
    return sum(int(line.split("\0")[1]) for line in _lines(path, ""))


def _lines(folder: str, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == _MARK_OF_ENVIRONMENT for entry in entries):
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _EXCLUDED_FOLDERS:
                yield from _lines(entry.path, f"{name}/")
        elif not entry.name.endswith(".trace"):
            status = entry.stat(follow_symlinks=False)
            yield f"{name}\0{status.st_size}\0{status.st_mtime_ns}"


def _environments(folder: Path) -> Iterator[Path]:
    """Virtual environments directly below the folder, whatever their name."""
    return folder.glob(f"*/{_MARK_OF_ENVIRONMENT}")
