"""Imports modules in a process of its own, to find out which of them all ranks can share.

In: names of modules. Out: a `ModuleRecord` for every module that was executed, in the order of completion: its imports,
its uses of the environment, and the side effects that a rank cannot repeat. A module with such effects is not shared,
and neither are the modules that import it. Modules of the standard library are trusted.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rank_runtime.zygote.import_effects import READS_PROCESS_ID, EnvironmentUse, ImportEffects
from rank_runtime.zygote.import_replay import keeps_process_id
from rank_runtime.zygote.observed_loader import observe
from rank_runtime.zygote.rank import die_with_parent
from rank_runtime.zygote.repeated_statements import VariableUses, repeated_statements
from rank_runtime.zygote.script_source import imported_modules, parse

PARTS_OF_TORCH = ("torch", "torchgen", "functorch", "triton")
_PATIENCE_SECONDS = 60.0  # between one module and the next


@dataclass
class ModuleRecord:
    """What the probe found out about one module."""

    name: str
    origin: str | None  # its file
    imports: list[str] = field(default_factory=list)
    environment: list[EnvironmentUse] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    began: int = 0  # its place in the order in which modules began to execute
    repeated: list[int] = field(default_factory=list)  # lines of the assignments that ranks execute again
    searched: dict[str, str | None] = field(default_factory=dict)  # modules that it looked for, and their files
    files: list[str] = field(default_factory=list)  # that it read


def is_standard(origin: str | None) -> bool:
    """Whether a module belongs to the standard library, or is a namespace package."""
    if origin is None or origin in ("built-in", "frozen"):
        return True
    return origin.startswith(_standard_folders()) and not {"site-packages", "dist-packages"} & set(Path(origin).parts)


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib"))


def import_quietly(names: Iterable[str]) -> None:
    """Import the names that are modules and can be imported."""
    for name in names:
        parent, _, attribute = name.rpartition(".")
        with contextlib.suppress(BaseException):  # a module may compute its attributes
            if name not in sys.modules and not hasattr(sys.modules.get(parent), attribute):
                importlib.import_module(name)


def probe(
    candidates: Sequence[str], rank_variables: frozenset[str], close: Iterable[int], known: Sequence[ModuleRecord] = ()
) -> list[ModuleRecord]:
    """Fork a process that imports the candidates; it closes the descriptors in `close`. The new records come after the
    known ones in every order."""
    parent = os.getpid()
    results_read, results_write = os.pipe2(os.O_CLOEXEC)
    process = os.fork()
    if process == 0:
        try:
            die_with_parent(parent)
            for descriptor in (results_read, *close):
                os.close(descriptor)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            used = max((use[0] for record in known for use in record.environment), default=0)
            began = max((record.began for record in known), default=0)
            _Probe(ImportEffects(rank_variables, used), results_write, began).run(candidates)
        finally:
            os._exit(0)
    os.close(results_write)
    try:
        return records_of(_lines(results_read))
    finally:
        os.close(results_read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def records_of(lines: Iterable[bytes]) -> list[ModuleRecord]:
    """Read the probe's lines: a module began (a name), ended (a record), was not found (null), or has another effect
    after its end (a pair). A module that did not end is not shared, and neither are its submodules: ranks would repeat
    its side effects."""
    records: list[ModuleRecord] = []
    executing: list[str] = []
    for line in lines:
        said = json.loads(line)
        if isinstance(said, str):
            executing.append(said)
            continue
        if isinstance(said, list):
            name, effect = said
            for record in records:
                if record.name == name:
                    record.effects.append(effect)
            continue
        executing.pop()
        if said is not None:
            records.append(record_of(said))
    return [*records, *(ModuleRecord(name, None, effects=["took too long to import"]) for name in executing)]


def record_of(fields: Mapping[str, Any]) -> ModuleRecord:
    """The record of its JSON form."""
    record = ModuleRecord(**fields)
    record.environment = [(when, kind, name, value) for when, kind, name, value in record.environment]
    return record


def _lines(descriptor: int) -> Iterator[bytes]:
    """The probe's lines, until it is done or a module takes too long: it may wait forever."""
    rest = b""
    while select.select([descriptor], [], [], _PATIENCE_SECONDS)[0]:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


class _Probe:
    """Imports the candidates in the probe's process."""

    def __init__(self, effects: ImportEffects, results: int, began: int) -> None:
        self._effects = effects
        self._results = results
        self._number = os.getpid()
        self._executing: list[ModuleRecord] = []
        self._sources: list[tuple[str, str]] = []  # files of modules that failed to import, and their packages
        self._failed: dict[str, BaseException] = {}  # modules that failed to import and are not tried again
        self._began = began
        self._records: dict[str, ModuleRecord] = {}  # of modules that were found and did not end yet
        self._lines: dict[str, list[tuple[str, int | None]]] = {}  # effects of a module, and the lines that had them
        self._uses = VariableUses(lambda module: self._send([module, "keeps a value of its process"]))

    def run(self, candidates: Sequence[str]) -> None:
        importing, importing_module = builtins.__import__, importlib.import_module

        def noted_import(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            module = importing(name, globals, locals, fromlist or (), level)
            if self._executing:
                self._note_import(name, globals, fromlist or (), level)
            return module

        def noted_import_module(name: str, package: str | None = None) -> ModuleType:
            module = importing_module(name, package)
            if self._executing:
                self._executing[-1].imports.append(module.__name__)
            return module

        self._effects.watch()
        sys.meta_path.insert(0, self)
        builtins.__import__ = noted_import
        importlib.import_module = noted_import_module
        import_quietly(candidates)
        for origin, package in self._sources:
            with contextlib.suppress(OSError):
                tree = parse(Path(origin).read_bytes())
                if tree is not None:
                    import_quietly(imported_modules(tree, package))

    def _note_import(
        self, name: str, globals: Mapping[str, object] | None, fromlist: Sequence[str], level: int
    ) -> None:
        package = str((globals or {}).get("__package__") or "")
        absolute = importlib.util.resolve_name("." * level + name, package) if level else name
        names = [absolute, *(f"{absolute}.{attribute}" for attribute in fromlist)]
        self._executing[-1].imports += [found for found in names if found in sys.modules]

    # ---- sys.meta_path ----

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._failed:
            if self._executing:
                self._executing[-1].imports.append(name)
            raise self._failed[name]
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._note_search(name, spec.origin)
                if spec.loader is not None and not is_standard(spec.origin):
                    self._records[name] = ModuleRecord(name, spec.origin)
                    observe(spec, self)
                return spec
        self._note_search(name, None)
        return None

    def _note_search(self, name: str, origin: str | None) -> None:
        if self._executing and "." not in name:
            self._executing[-1].searched[name] = origin

    # ---- the loaders ----

    def begin_module(self, name: str) -> None:
        record = self._records[name]
        self._collect_effects()
        if self._executing:
            self._executing[-1].imports.append(name)
        parts = name.split(".")
        # All parents, because a namespace package, which has no record, may lie in between.
        record.imports += [".".join(parts[:length]) for length in range(1, len(parts))]
        self._began += 1
        record.began = self._began
        self._executing.append(record)
        self._send(name)

    def end_module(self, name: str, error: BaseException | None, module: ModuleType | None) -> None:
        self._collect_effects()
        record = self._executing.pop()
        effects = self._lines.pop(name, [])
        if isinstance(error, Exception) and self._executing and not effects:
            # What a module may do without is missing for the zygote and the ranks as well. The attempt was its own.
            above = self._executing[-1]
            above.imports += record.imports
            above.environment += record.environment
            above.searched |= record.searched
            above.files += [*record.files, *([record.origin] if record.origin else [])]
            self._send(None)
            return
        reads_process_id = any(effect == READS_PROCESS_ID for effect, _ in effects)
        if module is not None and reads_process_id and not keeps_process_id(module, self._number):
            effects = [(effect, line) for effect, line in effects if effect != READS_PROCESS_ID]
        if module is not None and error is None:
            effects = self._without_repeated(record, module, effects)
        record.effects += [effect for effect, _ in effects]
        if error is not None:
            self._failed[name] = error
            record.effects.append(f"cannot be imported yet ({type(error).__name__}: {error})"[:100])
            if record.origin is not None and record.origin.endswith(".py"):
                package = getattr(module, "__package__", "") or ""
                self._sources.append((record.origin, package))
        record.imports = [found for found in dict.fromkeys(record.imports) if found != name]
        record.effects = list(dict.fromkeys(record.effects))
        record.files = list(dict.fromkeys(map(os.path.abspath, record.files)))
        self._send(asdict(record))

    def _without_repeated(
        self, record: ModuleRecord, module: ModuleType, effects: list[tuple[str, int | None]]
    ) -> list[tuple[str, int | None]]:
        """The effects without those of assignments that ranks can execute again."""
        lines = {line for effect, line in effects if line is not None}
        if not lines or len(lines) < len({line for _, line in effects}) or not str(record.origin).endswith(".py"):
            return effects
        assert record.origin is not None
        found = repeated_statements(Path(record.origin).read_bytes(), module, lines)
        if found is None or not self._uses.watch(module, found.variables):
            return effects
        record.repeated = list(found.lines)
        record.environment = [use for use in record.environment if use[2] not in self._effects.rank_variables]
        return []

    def _send(self, what: object) -> None:
        os.write(self._results, json.dumps(what).encode() + b"\n")

    def _collect_effects(self) -> None:
        """Attribute the effects since the last beginning or end of a module to the module being executed."""
        happened = self._effects.since_last()
        if self._executing:
            record = self._executing[-1]
            self._lines.setdefault(record.name, []).extend(happened.effects)
            record.environment += happened.environment
            record.files += happened.files
