"""Modules that were imported before the fork and that a rank has not imported yet.

The zygote removes them from `sys.modules` again, so that a rank begins with the modules of a new Python process. When a
rank imports one of them, it is put back, together with the modules that it imports, provided that importing it anew
would give the same: it is found in the same place, and the environment variables that it read have the same values.
Otherwise Python imports it as usual.

In: modules and the probe's records of them. Out: a finder for `sys.meta_path`.
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

from rank_runtime.zygote.import_probe import ModuleRecord


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
    return [record for record in records if record.name not in reasons], reasons


class SharedModules:
    """Modules set aside, by name."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self._records: dict[str, ModuleRecord] = {}  # of modules that this process has not imported
        self._brought: dict[str, list[str]] = {}  # names that appeared in sys.modules along with a module
        self._held_atexit: dict[
            str, list[Callable[[], object]]
        ] = {}  # `atexit` registrations of a module, to be made by ranks
        self._surroundings: tuple[str, object] = ("", None)
        self._is_searching = False

    @contextlib.contextmanager
    def hold_atexit(self, name: str) -> Iterator[None]:
        """In the zygote, while it imports the module: hold its `atexit` registrations for the ranks that import it."""
        register, is_importing = atexit.register, True

        def held(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            if is_importing:
                again = functools.partial(register, function, *arguments, **keywords)
                self._held_atexit.setdefault(name, []).append(again)
                return function
            return register(function, *arguments, **keywords)  # a module may have kept this function

        atexit.register = held
        try:
            yield
        finally:
            atexit.register = register
            is_importing = False

    def set_aside(self, records: Iterable[ModuleRecord], brought: Mapping[str, list[str]]) -> None:
        """In the zygote, after it has imported the modules: remove them from `sys.modules`."""
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
        if self._is_searching or name not in self._records or not self._is_still_valid(self._group(name)):
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
        for member in self._group(name):
            for brought in self._brought[member]:
                sys.modules.setdefault(brought, self.modules[brought])
            for register in self._held_atexit.pop(member, ()):
                register()
            del self._records[member]
        return self.modules[name]

    def _group(self, name: str) -> list[str]:
        """The module and all modules set aside that it imports, directly or indirectly."""
        found = {name: None} if name in self._records else {}
        waiting = list(found)
        while waiting:
            for imported in self._records[waiting.pop()].imports:
                if imported in self._records and imported not in found:
                    found[imported] = None
                    waiting.append(imported)
        return list(found)

    def _is_still_valid(self, group: Sequence[str]) -> bool:
        if self._surroundings != _surroundings():
            return False
        for member in group:
            record = self._records[member]
            if any(name in sys.modules for name in self._brought[member]):  # it was imported anew earlier
                return False
            if any(os.environ.get(name) != value for name, value in record.variables.items()):
                return False
            if "." not in member and self._origin(member) != record.origin:
                return False
        return True

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
