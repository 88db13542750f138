"""Keeps what the probe found out about modules, so that the next run with the same modules does not import them twice.

In: the records of a probe. Out: in a later run, those that still hold. A record holds as long as the module's file, the
files that it read, the modules that it looked for, the environment variables that it read, and the records of the
modules that it imports are the same. A record of a module that could not be imported, or took too long, is not kept.

    <cache>/maya-imports/<key>.json    one file for each script, Python, torch and Maya

The file is written atomically; of two runs at the same time, one wins. A damaged file is ignored and replaced. Files
that were not used for 30 days are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rank_runtime.build.cache import UNUSED_SECONDS, cache_folder
from rank_runtime.build.errors import BuildError
from rank_runtime.zygote.import_effects import differs
from rank_runtime.zygote.import_probe import ModuleRecord, record_of

VERSION = 1
FOLDER = "maya-imports"
_METADATA = (".dist-info", ".egg-info")
_UNRELIABLE = ("cannot be imported yet", "took too long")
_NOT_FILES = ("/proc/", "/sys/", "/dev/")


class ProbeCache:
    """The records of one script's modules."""

    def __init__(self, script: str | None, rank_variables: Iterable[str]) -> None:
        """`script`: the file or module that the ranks run."""
        self._began = time.time_ns()
        self._file: Path | None = None
        with contextlib.suppress(BuildError, OSError):
            words = [script, sorted(rank_variables), sys.version, sys.executable, sys.path, _own_sources(), _gpus()]
            key = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
            self._file = cache_folder() / FOLDER / f"{key}.json"
        self._origins: dict[str, str | None] = {}  # of top-level modules, now
        self.candidates: frozenset[str] = frozenset()  # names that were probed, some of which may be no modules

    def read(self) -> list[ModuleRecord]:
        """The records that still hold, in the order in which the modules were imported."""
        if self._file is None:
            return []
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            if content["version"] != VERSION or content["installed"] != _installed():
                return []
            records = [record_of(fields) for fields in content["records"]]
            files = {str(name): tuple(facts) for name, facts in content["files"].items()}
            changed = {name for name, facts in files.items() if _facts(name) != facts}
            valid = self._valid(records, changed, frozenset(content["variables"]))
            self.candidates = frozenset(map(str, content["candidates"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return []
        if len(valid) < len(records):
            self.candidates = frozenset()
        with contextlib.suppress(OSError):
            os.utime(self._file)
        return valid

    def write(self, records: Sequence[ModuleRecord], candidates: Iterable[str]) -> None:
        if self._file is None or not records:
            return
        files: dict[str, tuple[int, int]] = {}
        for name in {file for record in records for file in _files_of(record)}:
            facts = _facts(name)
            if facts is not None:
                files[name] = facts
        new = {name for name, (_, changed) in files.items() if changed >= self._began}  # perhaps after it was probed
        lost = {record.name for record in records if not _is_reliable(record) or new.intersection(_files_of(record))}
        content = {
            "version": VERSION,
            "installed": _installed(),
            "variables": sorted(os.environ),
            "candidates": [] if lost else sorted(candidates),
            "files": files,
            "records": [_fields(record) for record in _without(records, lost)],
        }
        temporary = self._file.with_name(f"{self._file.name}.{os.getpid()}.tmp")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._file)
            _prune(self._file.parent)
        except OSError:  # a cache that cannot be written is no cache
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _valid(
        self, records: Sequence[ModuleRecord], changed: set[str], variables: frozenset[str]
    ) -> list[ModuleRecord]:
        invalid = {
            record.name
            for record in records
            if changed.intersection(_files_of(record))
            or any(self._origin(name) != origin for name, origin in record.searched.items())
        }
        uses = sorted(((use, record) for record in records for use in record.environment), key=lambda each: each[0][0])
        for record in records:
            record.environment = []
        now: dict[str, str | None] = dict(os.environ)
        new = tuple(now.keys() - variables)
        for (when, kind, variable, value), record in uses:
            use = (when, kind, variable, value)
            if kind == "read" and _digest(now.get(variable)) == value:
                use = (when, kind, variable, now.get(variable))
            if differs(use, now, new):
                invalid.add(record.name)
            record.environment.append(use)
        return _without(records, invalid)

    def _origin(self, name: str) -> str | None:
        if name not in self._origins:
            found = (finder.find_spec(name, None) for finder in sys.meta_path)
            self._origins[name] = next((spec.origin for spec in found if spec is not None), None)
        return self._origins[name]


def _fields(record: ModuleRecord) -> dict[str, Any]:
    """The record as it is written. The environment may hold secrets: of the values read, only digests are written, and
    none of a module that is not shared, whatever it reads."""
    uses = [
        (when, kind, variable, _digest(value) if kind == "read" else value)
        for when, kind, variable, value in record.environment
        if kind == "set" or not record.effects
    ]
    return {**asdict(record), "environment": uses}


def _digest(value: str | None) -> str | None:
    return None if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()


def _without(records: Sequence[ModuleRecord], names: set[str]) -> list[ModuleRecord]:
    """The records of other modules that import none of these, directly or indirectly."""
    names = set(names)
    size = -1
    while len(names) > size:
        size = len(names)
        names.update(record.name for record in records if names.intersection(record.imports))
    return [record for record in records if record.name not in names]


def _files_of(record: ModuleRecord) -> list[str]:
    found = [*([record.origin] if record.origin is not None else []), *record.files]
    return [name for name in found if not name.startswith(_NOT_FILES)]


def _facts(name: str) -> tuple[int, int] | None:
    """The size and the time of change of a file; None if there is none, or another kind of file."""
    path = Path(name)
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_size, status.st_mtime_ns) if path.is_file() else None


def _is_reliable(record: ModuleRecord) -> bool:
    """Whether the effects will be the same next time. A module that failed because of an effect will fail again."""
    return record.origin is not None and not (record.effects and record.effects[0].startswith(_UNRELIABLE))


def _installed() -> str:
    """A digest of the names of installed packages, which have their versions in them."""
    names: list[str] = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            names += (name for name in os.listdir(folder or ".") if name.endswith(_METADATA))  # noqa: PTH208
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def _own_sources() -> Mapping[str, Any]:
    """What a change of Maya itself would change."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    torch = sys.modules.get("torch")
    return {
        "maya": digest,
        "torch": getattr(torch, "__version__", None),
        "torch_file": getattr(torch, "__file__", None),
    }


def _gpus() -> list[str | None]:
    """What modules may learn of the virtual GPUs."""
    return [os.environ.get(name) for name in ("MAYA_GPU_PROPERTIES", "MAYA_GPUS", "CUDA_VISIBLE_DEVICES")]


def _prune(folder: Path) -> None:
    oldest = time.time() - UNUSED_SECONDS
    for file in folder.glob("*.json*"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
