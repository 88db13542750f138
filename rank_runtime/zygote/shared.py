"""Modules that were imported before the fork, but that no rank has imported yet.

In the zygote they are taken out of `sys.modules` again, so that a rank begins with what Python begins with. When the
script, or a module of it, imports one of them, it is put there together with all that it imports, if it still is what
would be imported: found at the same place, under the same environment variables that it read. If not, it is imported as
any other module is.

In: modules and what the probe found out about them. Out: a finder for `sys.meta_path`.
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

from rank_runtime.zygote.probe import Record


def shareable(records: Sequence[Record]) -> tuple[list[Record], dict[str, str]]:
    """Of the modules that the probe executed, those to share, in the order to import them; why the others are not."""
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
        self._records: dict[str, Record] = {}  # of those that this process has not imported
        self._brought: dict[str, list[str]] = {}  # names that appeared in sys.modules along with a module
        self._endings: dict[str, list[Callable[[], object]]] = {}  # what a module registers for the end of the process
        self._place: tuple[str, object] = ("", None)
        self._asking = False

    @contextlib.contextmanager
    def endings_of(self, name: str) -> Iterator[None]:
        """In the zygote, while it imports the module: what that registers with `atexit` is for ranks that import it."""
        register, is_importing = atexit.register, True

        def held(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            if is_importing:
                again = functools.partial(register, function, *arguments, **keywords)
                self._endings.setdefault(name, []).append(again)
                return function
            return register(function, *arguments, **keywords)  # a module may have kept us

        atexit.register = held
        try:
            yield
        finally:
            atexit.register = register
            is_importing = False

    def set_aside(self, records: Iterable[Record], brought: Mapping[str, list[str]]) -> None:
        """In the zygote, when they are imported."""
        for record in records:
            self._records[record.name] = record
            self._brought[record.name] = brought[record.name]
            for name in brought[record.name]:
                self.modules[name] = sys.modules.pop(name)
        self._place = _place()

    def begin(self) -> None:
        """In a rank."""
        if self._records:
            sys.meta_path.insert(0, self)

    # ---- sys.meta_path ----

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self._asking or name not in self._records or not self._still_true(self._group(name)):
            return None
        known = self.modules[name].__spec__
        assert known is not None, "it was imported"
        spec = ModuleSpec(name, _Shared(self, known), origin=known.origin, loader_state=known.loader_state)  # type: ignore[arg-type]
        spec.submodule_search_locations = known.submodule_search_locations
        spec.cached = known.cached
        spec.has_location = known.has_location
        return spec

    def take(self, name: str) -> ModuleType:
        """This process imports the module, and with it all that it imports."""
        for member in self._group(name):
            for brought in self._brought[member]:
                sys.modules.setdefault(brought, self.modules[brought])
            for register in self._endings.pop(member, ()):
                register()
            del self._records[member]
        return self.modules[name]

    def _group(self, name: str) -> list[str]:
        """The module and all modules it imports that are set aside, too."""
        found = {name: None} if name in self._records else {}
        waiting = list(found)
        while waiting:
            for imported in self._records[waiting.pop()].imports:
                if imported in self._records and imported not in found:
                    found[imported] = None
                    waiting.append(imported)
        return list(found)

    def _still_true(self, group: Sequence[str]) -> bool:
        if self._place != _place():
            return False
        for member in group:
            record = self._records[member]
            if any(name in sys.modules for name in self._brought[member]):  # imported anew, for one of these reasons
                return False
            if any(os.environ.get(name) != value for name, value in record.variables.items()):
                return False
            if "." not in member and self._origin(member) != record.origin:
                return False
        return True

    def _origin(self, name: str) -> str | None:
        """Where the module of this name would come from now."""
        self._asking = True
        try:
            found = (finder.find_spec(name, None) for finder in sys.meta_path)
            return next((spec.origin for spec in found if spec is not None), None)
        finally:
            self._asking = False


class _Shared:
    """The loader of a module that is loaded already; apart from that, its own."""

    def __init__(self, shared: SharedModules, spec: ModuleSpec) -> None:
        self._shared = shared
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._shared.take(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _place() -> tuple[str, object]:
    """What else a module may have depended on: the working directory, and the type of new tensors."""
    torch = sys.modules.get("torch")
    return os.getcwd(), None if torch is None else torch.get_default_dtype()  # noqa: PTH109
