"""The folder of a scaling study: scale.json with the settings and the rows, and a run's folder for each size.

In: the folder, and the settings of the study. Out: the rows of sizes that are finished, so that a study that was
interrupted goes on where it stopped. A folder with anything else in it, or with a study of other settings, is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maya.scaling.scale_row import ScaleRow, row_of_dict
from maya.util.files import write_atomically
from maya.version import __version__

FILE = "scale.json"
VERSION = 1  # of scale.json, which docs/scale.md describes
_VARIABLES = ("MAYA_", "NCCL_", "PET_")  # that change a prediction


class StudyFolderError(ValueError):
    """A folder that cannot hold the study."""


@dataclass(frozen=True)
class StudySettings:
    """What decides the figures of every size, but for the size itself."""

    script: str
    args: tuple[str, ...]  # templates
    options: tuple[str, ...]  # of maya-torchrun, templates
    environment: Mapping[str, str]
    files: Mapping[str, str]  # the script and files that options name, with a hash of their contents
    maya: str = __version__

    @staticmethod
    def of(script: str, args: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> StudySettings:
        values = [option.partition("=")[2] for option in options]
        files = {name: _hash(Path(name)) for name in (script, *values) if name and Path(name).is_file()}
        chosen = {name: value for name, value in sorted(environment.items()) if name.startswith(_VARIABLES)}
        return StudySettings(script, tuple(args), tuple(options), chosen, files)

    def document(self) -> dict[str, Any]:
        """As scale.json has it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


class StudyFolder:
    """The folder, while one process works in it."""

    def __init__(self, folder: Path, settings: StudySettings) -> None:
        self.folder = folder
        self._settings = settings
        self._rows: dict[int, ScaleRow] = {}

    @contextmanager
    def opened(self) -> Iterator[StudyFolder]:
        """Make the folder, or read the study in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(each.name != _LOCK for each in self.folder.iterdir()):
                self._read()
            with _locked(self.folder):
                self.write()
                yield self
        except OSError as error:
            raise StudyFolderError(f"--out {self.folder}: {error.strerror or error}") from error

    def finished(self, nproc: int) -> ScaleRow | None:
        """The row of a size that need not run again."""
        row = self._rows.get(nproc)
        return row if row is not None and row.succeeded and (self.folder / row.folder / "run.json").is_file() else None

    def begin(self, nproc: int) -> Path:
        """The folder for the run of a size, without remains of an earlier one."""
        self._rows.pop(nproc, None)
        run = self.folder / run_name(nproc)
        if run.exists():
            shutil.rmtree(run)
        self.write()
        return run

    def add(self, row: ScaleRow) -> None:
        """Keep the row of a size that has ended."""
        self._rows[row.nproc] = row
        self.write()

    def write(self) -> None:
        rows = [self._rows[nproc].to_dict() for nproc in sorted(self._rows)]
        content = {"version": VERSION, "settings": self._settings.document(), "rows": rows}
        write_atomically(self.folder / FILE, json.dumps(content, indent=2) + "\n")

    def _read(self) -> None:
        file = self.folder / FILE
        if not file.is_file():
            raise StudyFolderError(f"--out {self.folder} is not empty and has no {FILE}; choose another folder")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            version, settings = content["version"], content["settings"]
            rows = [row_of_dict(each) for each in content["rows"]] if version == VERSION else []
        except (ValueError, KeyError, TypeError) as error:
            raise StudyFolderError(f"{file} is not valid; choose another folder with --out, or remove it") from error
        if version != VERSION:
            raise StudyFolderError(f"{file} has version {version}, this Maya writes {VERSION}; choose another --out")
        own = self._settings.document()
        different = [name for name in own if settings.get(name) != own[name]]
        if different:
            raise StudyFolderError(
                f"--out {self.folder} has a study with other settings ({_difference(settings, own, different[0])}); "
                "choose another folder, or remove it"
            )
        self._rows = {row.nproc: row for row in rows}


def run_name(nproc: int) -> str:
    return f"nproc-{nproc}"


def _difference(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    old, new = before.get(name), after[name]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return f"{', '.join(changed)} changed since" if name == "files" else f"{name}: {', '.join(changed)}"
    return f"{name}: {_words(old)} instead of {_words(new)}"


def _words(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


_LOCK = ".lock"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process works in a folder."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyFolderError(f"--out {folder}: another maya scale is at work there") from None
        yield
        with suppress(FileNotFoundError):
            (folder / _LOCK).unlink()
    finally:
        os.close(descriptor)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
