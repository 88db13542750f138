"""Imports modules in a process of its own, to find out which of them all ranks can share.

In: names of modules. Out: a `ModuleRecord` for every module that was executed, in the order of completion: its imports,
the environment variables that it read, and its side effects. A module with side effects is not shared, and neither are
the modules that import it. Modules of the standard library are trusted.
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

from rank_runtime.zygote.import_effects import READS_PROCESS_ID, REGISTERS_OPERATORS, ImportEffects, keeps_process_id
from rank_runtime.zygote.rank import die_with_parent
from rank_runtime.zygote.script_source import imported_modules, parse

PARTS_OF_TORCH = ("torch", "torchgen", "functorch", "triton")
_PATIENCE_SECONDS = 60.0  # between one module and the next


@dataclass
class ModuleRecord:
    """What the probe found out about one module."""

    name: str
    origin: str | None  # its file
    imports: list[str] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)


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
        if name not in sys.modules and not hasattr(sys.modules.get(parent), attribute):
            with contextlib.suppress(BaseException):
                importlib.import_module(name)


def probe(candidates: Sequence[str], rank_variables: frozenset[str], close: Iterable[int]) -> list[ModuleRecord]:
    """Fork a process that imports the candidates; it closes the descriptors in `close`."""
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
            _Probe(ImportEffects(rank_variables), results_write).run(candidates)
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
    """Read the probe's lines: a module began (a name), ended (a record), or was not found (null). A module that did not
    end is not shared, and neither are its submodules: ranks would repeat its side effects."""
    records: list[ModuleRecord] = []
    executing: list[str] = []
    for line in lines:
        said = json.loads(line)
        if isinstance(said, str):
            executing.append(said)
            continue
        executing.pop()
        if said is not None:
            records.append(ModuleRecord(**said))
    return [*records, *(ModuleRecord(name, None, effects=["took too long to import"]) for name in executing)]


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

    def __init__(self, effects: ImportEffects, results: int) -> None:
        self._effects = effects
        self._results = results
        self._number = os.getpid()
        self._executing: list[ModuleRecord] = []
        self._sources: list[tuple[str, str]] = []  # files of modules that failed to import, and their packages
        self._failed: dict[str, BaseException] = {}  # modules that failed to import and are not tried again

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
                if spec.loader is not None and not is_standard(spec.origin):
                    spec.loader = _Loader(spec.loader, ModuleRecord(name, spec.origin), self)  # type: ignore[assignment]
                return spec
        return None

    # ---- the loaders ----

    def begin(self, record: ModuleRecord) -> None:
        self._collect_effects()
        if self._executing:
            self._executing[-1].imports.append(record.name)
        parts = record.name.split(".")
        # All parents, because a namespace package, which has no record, may lie in between.
        record.imports += [".".join(parts[:length]) for length in range(1, len(parts))]
        self._executing.append(record)
        self._send(record.name)

    def end(self, record: ModuleRecord, error: BaseException | None, module: ModuleType | None) -> None:
        self._collect_effects()
        self._executing.pop()
        if isinstance(error, ImportError) and self._executing and not record.effects:
            # What a module may do without is missing for the zygote and the ranks as well. The attempt was its own.
            self._executing[-1].imports += record.imports
            self._executing[-1].variables.update(record.variables)
            self._send(None)
            return
        harmless = set()
        if module is not None and READS_PROCESS_ID in record.effects and not keeps_process_id(module, self._number):
            harmless.add(READS_PROCESS_ID)
        if record.name.partition(".")[0] in PARTS_OF_TORCH:
            harmless.add(REGISTERS_OPERATORS)  # torch's own modules stay imported
        record.effects = [effect for effect in record.effects if effect not in harmless]
        if error is not None:
            self._failed[record.name] = error
            record.effects.append(f"cannot be imported yet ({type(error).__name__}: {error})"[:100])
            if record.origin is not None and record.origin.endswith(".py"):
                package = getattr(module, "__package__", "") or ""
                self._sources.append((record.origin, package))
        record.imports = [name for name in dict.fromkeys(record.imports) if name != record.name]
        record.effects = list(dict.fromkeys(record.effects))
        self._send(asdict(record))

    def _send(self, what: object) -> None:
        os.write(self._results, json.dumps(what).encode() + b"\n")

    def _collect_effects(self) -> None:
        """Attribute the effects since the last beginning or end of a module to the module being executed."""
        effects, variables = self._effects.since_last()
        if self._executing:
            self._executing[-1].effects += effects
            self._executing[-1].variables.update(variables)


class _Loader:
    """Wraps a module's loader and reports to the probe."""

    def __init__(self, loader: Any, record: ModuleRecord, probe: _Probe) -> None:
        self._loader = loader
        self._record = record
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        self._probe.begin(self._record)  # an extension module may run all its code here
        try:
            module: ModuleType | None = self._loader.create_module(spec)
        except BaseException as error:
            self._probe.end(self._record, error, None)
            raise
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        error: BaseException | None = None
        try:
            self._loader.exec_module(module)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._probe.end(self._record, error, module)
