"""The folder of a search: search.json with the settings, search.db with the trials, and trial-N.json for each of them.

In: the folder and the settings of the search. Out: finished trials, and the right to run others. Several searches may
work in one folder at once: a file lock guards the choice of the next trial, and another one marks each trial that runs.
The process of the job holds that lock as well, so a trial whose search was killed is not taken over before its job has
ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maya.config_search.errors import SearchError
from maya.config_search.trial_row import TrialRow, trial_name, trial_of_dict
from maya.util.files import write_atomically

FILE = "search.json"
DATABASE = "search.db"
VERSION = 1  # of search.json and trial-N.json, which docs/search.md describes
_CHOICE_LOCK = ".choice.lock"


class SearchFolder:
    """A folder that has these settings."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self.choosing():
                self._check()
                content = {"version": VERSION, "settings": self._settings}
                write_atomically(folder / FILE, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise SearchError(f"--out {folder}: {error.strerror or error}") from error

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """While no other search chooses a trial or takes one over."""
        descriptor = os.open(self.folder / _CHOICE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def finished(self, number: int) -> TrialRow | None:
        """The row of a trial; None: it has not finished."""
        file = self.folder / f"{trial_name(number)}.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return trial_of_dict(content["trial"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SearchError(f"{file} is not valid; remove it, and the trial runs again") from error

    def write(self, row: TrialRow) -> None:
        """Keep a finished trial."""
        content = {"version": VERSION, "trial": row.to_dict()}
        write_atomically(self.folder / f"{trial_name(row.number)}.json", json.dumps(content, indent=2) + "\n")
        self._lock_file(row.number).unlink(missing_ok=True)

    def lock_trial(self, number: int) -> int | None:
        """A descriptor that marks the trial as running as long as a process has it; None: another process has."""
        descriptor = os.open(self._lock_file(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None

    def run_folder(self, number: int) -> Path:
        """A folder for the run of a trial, without remains of one that was interrupted."""
        run = self.folder / trial_name(number)
        if run.exists():
            shutil.rmtree(run)
        return run

    def _lock_file(self, number: int) -> Path:
        return self.folder / f".{trial_name(number)}.lock"

    def _check(self) -> None:
        """Refuse a folder with anything else in it, or with a search of other settings."""
        file = self.folder / FILE
        if not file.exists():
            if any(each.name != _CHOICE_LOCK for each in self.folder.iterdir()):
                raise SearchError(f"--out {self.folder} is not empty and has no {FILE}; choose another folder")
            return
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            version, before = content["version"], dict(content["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise SearchError(f"{file} is not valid; choose another folder with --out, or remove it") from error
        if version != VERSION:
            raise SearchError(f"{file} has version {version}, this Maya writes {VERSION}; choose another --out")
        different = [name for name in self._settings if before.get(name) != self._settings[name]]
        if different:
            raise SearchError(
                f"--out {self.folder} has a search with other settings ({', '.join(different)}); choose another "
                "folder, or remove it"
            )
