"""Imports modules before the fork.

Torch's usual modules are always imported: they start no threads, open no files and do not use the GPU. Modules that the
script imports are imported if this has no effect that every rank must have for itself; `import_probe` finds out.

In: the location of the script. Out: `sys.modules` with torch, `SharedModules` with the other modules; or a reason why
ranks have to be separate processes, because even torch would be imported differently in them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType

from rank_runtime.zygote.import_probe import PARTS_OF_TORCH, ModuleRecord, import_quietly, is_standard, probe
from rank_runtime.zygote.import_replay import ReplayRecorder
from rank_runtime.zygote.probe_cache import ProbeCache
from rank_runtime.zygote.protocol import Preparation
from rank_runtime.zygote.repeated_statements import compile_statements
from rank_runtime.zygote.script_source import assignments_before, imported_modules, parse
from rank_runtime.zygote.shared_modules import SharedModules, shareable

# The coordinator needs these as well.
_FIRST = ("torch", "torch.distributed")

# Modules that torch or most scripts import sooner or later. A rank that imported them itself would need 100 MB more.
_TORCH = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.experimental",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim.swa_utils",
    "torch.utils.checkpoint",
    "torch.utils.data.distributed",
    "torch.profiler",
    "torch._dynamo.repro.after_dynamo",  # imported by torch.compile, which some modules call while they are imported
    "torch._inductor.compiler_bisector",
)
_READ_BY_LIBRARIES = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "LD_")


class Preload:
    """The modules of one zygote."""

    def __init__(self, preparation: Preparation, python_has: frozenset[str]) -> None:
        """`python_has`: modules that every Python process has imported before the script begins."""
        self._preparation = preparation
        self._python_has = python_has
        self.shared = SharedModules()
        self.unshared: dict[str, str] = {}
        self.counts: dict[str, int] = {}  # modules that were probed, known from earlier runs, and shared
        self.problem: str | None = None  # why the ranks cannot be forked
        self._folder = self._first_folder()
        self._source, self._package = self._find_source()
        self._tree = None
        if self._source is not None:
            with contextlib.suppress(OSError):
                self._tree = parse(Path(self._source).read_bytes())

    def import_first(self) -> None:
        """Import the part of torch that the coordinator needs."""
        if self._preparation.torch:
            with self._variables_of_script(frozenset({"torch", "numpy"})):
                import_quietly(_FIRST)

    def import_rest(self, close: Iterable[int]) -> None:
        """Import everything else; `close` are the zygote's own descriptors, which the probe closes."""
        if self._preparation.torch and self.problem is None:
            with self._variables_of_script(frozenset({"torch", "numpy"})):
                import_quietly(_TORCH)
        if self._preparation.share and self.problem is None:
            self.problem = self._shadowed()
        if self._preparation.torch and self.problem is None:
            with self._variables_of_script(frozenset()), self._first_on_path():
                self._import_for_script(close)

    def _first_folder(self) -> str | None:
        """The folder that Python will put first on sys.path."""
        if getattr(sys.flags, "safe_path", False):
            return None
        if self._preparation.module is not None:
            return os.getcwd()  # noqa: PTH109
        if self._preparation.script is not None:
            return str(Path(self._preparation.script).resolve().parent)
        return None

    def _find_source(self) -> tuple[str | None, str]:
        """The file that the ranks will run, and the package it belongs to. Nothing is imported."""
        if self._preparation.module is None:
            return self._preparation.script, ""
        path = [*([self._folder] if self._folder is not None else []), *sys.path]
        name, package = "", ""
        for part in (*self._preparation.module.split("."), "__main__"):
            name = f"{name}.{part}" if name else part
            spec = PathFinder.find_spec(name, path)
            if spec is None or spec.submodule_search_locations is None:
                return (None if spec is None else spec.origin), package
            path, package = list(spec.submodule_search_locations), name
        return None, ""

    @contextlib.contextmanager
    def _variables_of_script(self, before_modules: frozenset[str]) -> Iterator[None]:
        """Set the variables that the script sets before it imports these modules."""
        assignments = [] if self._tree is None else assignments_before(self._tree, before_modules)
        before = dict(os.environ)
        for assignment in assignments:
            if assignment.name is not None and assignment.value is not None:
                os.environ[assignment.name] = assignment.value
            elif before_modules and (assignment.name or "").startswith(_READ_BY_LIBRARIES):
                self.problem = f"{self._source} sets {assignment.name} before it imports torch"
        try:
            yield
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)

    @contextlib.contextmanager
    def _first_on_path(self) -> Iterator[None]:
        if self._folder is None:
            yield
            return
        sys.path.insert(0, self._folder)
        try:
            yield
        finally:
            sys.path.remove(self._folder)

    def _shadowed(self) -> str | None:
        """A file next to the script that Python would import instead of a module that is already imported."""
        for name in sorted({name.partition(".")[0] for name in set(sys.modules) - self._python_has}):
            spec = None if self._folder is None else PathFinder.find_spec(name, [self._folder])
            if spec is not None and spec.loader is not None and spec.origin != _file(name):
                return f"{spec.origin} takes the place of the module {name}"
        return None

    def _import_for_script(self, close: Iterable[int]) -> None:
        """Find out which modules the ranks can share, import these, and set them aside."""
        candidates = self._candidates()
        missing = {name for name in self._preparation.modules if PathFinder.find_spec(name.partition(".")[0]) is None}
        self.unshared = dict.fromkeys(sorted(missing), "cannot be found")
        import_quietly(name for name in candidates if _is_standard_name(name))
        candidates = [name for name in candidates if name not in sys.modules]
        candidates = [
            name
            for name in candidates
            if not hasattr(sys.modules.get(name.rpartition(".")[0]), name.rpartition(".")[2])
        ]
        if not candidates:
            return
        script = self._preparation.script or self._preparation.module
        variables = frozenset(self._preparation.rank_variables)
        cache = ProbeCache(script, variables)
        known = cache.read()
        shared_imports = _SharedImports(self.shared)
        with shared_imports:
            new: list[ModuleRecord] = []
            shared_imports.import_all(known)
            if not cache.candidates.issuperset(candidates):
                new = probe(candidates, variables, close, known)
                probed = {record.name for record in new}
                known = [record for record in known if record.name not in probed]
                cache.write([*known, *new], {*cache.candidates, *candidates})
                shared_imports.import_all([*known, *new])
        self.unshared.update(shared_imports.unshared)
        self.counts = {"probed": len(new), "known": len(known), "shared": shared_imports.count}

    def _candidates(self) -> list[str]:
        module = (self._preparation.module or "").split(".")
        parents = [".".join(module[:length]) for length in range(1, len(module))]
        found = [] if self._tree is None else imported_modules(self._tree, self._package)
        return [*parents, *found, *self._preparation.modules]


class _SharedImports:
    """Imports modules that ranks can share, as a context manager that sets them aside at its end."""

    def __init__(self, shared: SharedModules) -> None:
        self._shared = shared
        self._variables = frozenset(os.environ)
        self._recorder = ReplayRecorder()
        self._records: dict[str, ModuleRecord] = {}  # of imported modules
        self._failed: dict[str, str] = {}
        self.unshared: dict[str, str] = {}

    @property
    def count(self) -> int:
        return len(self._records)

    def __enter__(self) -> None:
        self._recorder.begin()

    def __exit__(self, *_: object) -> None:
        self._recorder.take_back()
        recorder = self._recorder
        imported = [record for record in self._records.values() if record.name in sys.modules]
        brought = {
            record.name: [
                name for name in recorder.brought.get(record.name, ()) if name in sys.modules and not _stays(name)
            ]
            for record in imported
        }
        self._shared.set_aside(imported, brought, recorder.replays, recorder.libraries, self._variables)

    def import_all(self, records: Sequence[ModuleRecord]) -> None:
        """Import those that can be shared, unless they are imported already, and record the effects that ranks
        repeat."""
        shared, reasons = shareable(records)
        new = [record for record in shared if record.name not in self._records and record.name not in self._failed]
        for record in new:
            self._recorder.expect(record.name, _repeated_code(record))
        for record in sorted(new, key=lambda record: record.began):  # as the script's imports execute them
            self._import(record)
        self.unshared = {**reasons, **self._failed}

    def _import(self, record: ModuleRecord) -> None:
        try:
            with self._shared.hold_atexit(lambda: self._recorder.executing or record.name):
                importlib.import_module(record.name)
        except Exception as error:  # although the probe could import it
            self._failed[record.name] = f"raises {type(error).__name__}"
        else:
            self._records[record.name] = record


def _repeated_code(record: ModuleRecord) -> CodeType | None:
    if not record.repeated or record.origin is None:
        return None
    return compile_statements(Path(record.origin).read_bytes(), record.origin, record.repeated)


def _file(name: str) -> str | None:
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)


def _stays(name: str) -> bool:
    """Whether the module stays in `sys.modules`. Torch's modules do, because they register themselves with other
    modules of torch, which works once only. Namespace packages do: they run no code, and a rank that
    made a new one would not find the submodules."""
    if name.partition(".")[0] in PARTS_OF_TORCH or is_standard(_file(name) or name):
        return True
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _is_standard_name(name: str) -> bool:
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top)
    return top in sys.builtin_module_names or (
        spec is not None and spec.origin is not None and is_standard(spec.origin)
    )
