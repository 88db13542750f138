"""Modules that were imported before the fork and that a rank has not imported yet.

The zygote removes them from `sys.modules` again, so that a rank begins with the modules of a new Python process. When a
rank imports one of them, it is put back, together with the modules that it imports, provided that importing it anew
would give the same: it is found in the same place, the environment variables that it read have the same values, and its
side effects can be repeated. They are repeated then. Otherwise Python imports it as usual.

In: modules, the probe's records of them, and the side effects to repeat. Out: a finder for `sys.meta_path`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rank_runtime.zygote.import_effects import EnvironmentUse, differs
from rank_runtime.zygote.import_probe import ModuleRecord
from rank_runtime.zygote.import_replay import InterpreterLists, ListReplay, Replay


def shareable(records: Sequence[ModuleRecord]) -> tuple[list[ModuleRecord], dict[str, str]]:
    """The modules to share, in import order, and the reasons why the others are not shared."""
    reasons: dict[str, str] = {record.name: record.effects[0] for record in records if record.effects}
    changed = True
    while changed:
        changed = False
        for record in records:
            cause = next((name for name in record.imports if name in reasons), None)
            if record.name not in reasons and cause is not None:
                reasons[record.name] = f"imports {cause}"
                changed = True
        for name, reason in _missing_variables(records, reasons).items():
            changed |= reasons.setdefault(name, reason) is reason
    return [record for record in records if record.name not in reasons], reasons


def _missing_variables(records: Sequence[ModuleRecord], unshared: Mapping[str, str]) -> dict[str, str]:
    """The modules that would not find a variable as in the probe, because a module that is not shared has set it."""
    uses = sorted((use, record.name) for record in records for use in record.environment)
    setters: dict[str, str] = {}
    found: dict[str, str] = {}
    for (_, kind, variable, _), name in uses:
        if kind == "set":
            setters[variable] = name
        elif setters.get(variable, name) in unshared and name not in unshared:
            found[name] = f"reads {variable}, which {setters[variable]} sets"
    return found


class SharedModules:
    """Modules set aside, by name."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self._records: dict[str, ModuleRecord] = {}  # of modules that this process has not imported
        self._brought: dict[str, list[str]] = {}  # names that appeared in sys.modules along with a module
        self._held_atexit: dict[
            str, list[Callable[[], object]]
        ] = {}  # `atexit` registrations of a module, to be made by ranks
        self._replays: Mapping[str, list[tuple[int, Replay]]] = {}
        self._libraries: Mapping[str, list[Any]] = {}  # of operators that a module has registered
        self._variables: frozenset[str] = frozenset()  # that there were in the zygote
        self._surroundings: tuple[str, object] = ("", None)
        self._is_searching = False

    @contextlib.contextmanager
    def hold_atexit(self, executing: Callable[[], str]) -> Iterator[None]:
        """In the zygote, while it imports modules: hold their `atexit` registrations for the ranks that import them."""
        register, is_importing = atexit.register, True

        def held(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            if is_importing:
                again = functools.partial(register, function, *arguments, **keywords)
                self._held_atexit.setdefault(executing(), []).append(again)
                return function
            return register(function, *arguments, **keywords)  # a module may have kept this function

        atexit.register = held
        try:
            yield
        finally:
            atexit.register = register
            is_importing = False

    def set_aside(
        self,
        records: Iterable[ModuleRecord],
        brought: Mapping[str, list[str]],
        replays: Mapping[str, list[tuple[int, Replay]]],
        libraries: Mapping[str, list[Any]],
        variables: frozenset[str],
    ) -> None:
        """In the zygote, after it has imported the modules: remove them from `sys.modules`. `variables`: the names of
        the environment's variables before the imports."""
        self._replays, self._libraries, self._variables = replays, libraries, variables
        for record in records:
            self._records[record.name] = record
            self._brought[record.name] = brought[record.name]
            for name in brought[record.name]:
                self.modules[name] = sys.modules.pop(name)
        self._surroundings = _surroundings()

    def begin(self) -> None:
        """In a rank: install the finder."""
        if self._records:
            sys.meta_path.insert(0, self)

    # ---- sys.meta_path ----

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._is_searching or name not in self._records:
            return None
        if not self._is_still_valid(self._group(name)):
            # The module registers its operators anew, which fails if they are registered already.
            for library in self._libraries.get(name, ()):
                library._destroy()
            return None
        known = self.modules[name].__spec__
        assert known is not None, "it was imported"
        spec = ModuleSpec(name, _SharedLoader(self, known), origin=known.origin, loader_state=known.loader_state)  # type: ignore[arg-type]
        spec.submodule_search_locations = known.submodule_search_locations
        spec.cached = known.cached
        spec.has_location = known.has_location
        return spec

    def take(self, name: str) -> ModuleType:
        """Put the module, and all modules that it imports, into `sys.modules`."""
        group = self._group(name)
        for member in group:
            for brought in self._brought[member]:
                sys.modules.setdefault(brought, self.modules[brought])
        for _, kind, variable, value in self._environment_uses(group):
            if kind == "set" and value is not None:
                os.environ[variable] = value
            elif kind == "set":
                os.environ.pop(variable, None)
        for replay in self._replays_of(group):
            replay.repeat()
        for member in group:
            for register in self._held_atexit.pop(member, ()):
                register()
            del self._records[member]
        return self.modules[name]

    def _group(self, name: str) -> list[str]:
        """The module and all modules set aside that it imports, directly or indirectly, in the order in which Python
        executes them."""
        found = {name: None} if name in self._records else {}
        waiting = list(found)
        while waiting:
            for imported in self._records[waiting.pop()].imports:
                if imported in self._records and imported not in found:
                    found[imported] = None
                    waiting.append(imported)
        return sorted(found, key=lambda each: self._records[each].began)

    def _environment_uses(self, group: Sequence[str]) -> list[EnvironmentUse]:
        return sorted(use for member in group for use in self._records[member].environment)

    def _replays_of(self, group: Sequence[str]) -> list[Replay]:
        found = [numbered for member in group for numbered in self._replays.get(member, ())]
        return [replay for _, replay in sorted(found, key=lambda numbered: numbered[0])]

    def _is_still_valid(self, group: Sequence[str]) -> bool:
        if self._surroundings != _surroundings() or not self._has_environment(group):
            return False
        replays = self._replays_of(group)
        lists = InterpreterLists()
        try:
            for replay in replays:  # a module may be found only in a folder that another one adds to sys.path
                if isinstance(replay, ListReplay):
                    if not replay.is_possible():
                        return False
                    replay.repeat()
            if not all(self._would_be_found(member) for member in group):
                return False
        finally:
            if not lists.is_same():
                lists.restore()
        return all(replay.is_possible() for replay in replays if not isinstance(replay, ListReplay))

    def _would_be_found(self, member: str) -> bool:
        """Whether Python would import the module from the same file."""
        if any(name in sys.modules for name in self._brought[member]):  # it was imported anew earlier
            return False
        return "." in member or self._origin(member) == self._records[member].origin

    def _has_environment(self, group: Sequence[str]) -> bool:
        """Whether the modules would read from the environment what they have read, and what they have set."""
        now: dict[str, str | None] = dict(os.environ)
        new = tuple(name for name in now if name not in self._variables)
        return not any(differs(use, now, new) for use in self._environment_uses(group))

    def _origin(self, name: str) -> str | None:
        """The file that a module of this name would be imported from now."""
        self._is_searching = True
        try:
            found = (finder.find_spec(name, None) for finder in sys.meta_path)
            return next((spec.origin for spec in found if spec is not None), None)
        finally:
            self._is_searching = False


class _SharedLoader:
    """The loader of a module that is already in memory; other attributes are those of its original loader."""

    def __init__(self, shared: SharedModules, spec: ModuleSpec) -> None:
        self._shared = shared
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._shared.take(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _surroundings() -> tuple[str, object]:
    """Further state that a module may depend on: the working directory and the default dtype."""
    torch = sys.modules.get("torch")
    return os.getcwd(), None if torch is None else torch.get_default_dtype()  # noqa: PTH109
