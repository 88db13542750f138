"""A module's loader that reports when the module begins and ends to execute.

In: a spec whose loader is to be observed. Out: calls of an `ImportObserver`.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol


class ImportObserver(Protocol):
    """Is told of the modules that are executed; a module that fails ends with its exception."""

    def begin_module(self, name: str) -> None: ...

    def end_module(self, name: str, error: BaseException | None, module: ModuleType | None) -> None: ...


def observe(spec: ModuleSpec, observer: ImportObserver) -> None:
    """Have `observer` told of the module's execution. The module itself gets its original loader."""
    spec.loader = _ObservedLoader(spec.loader, spec.name, observer)  # type: ignore[assignment]


class _ObservedLoader:
    def __init__(self, loader: Any, name: str, observer: ImportObserver) -> None:
        self._loader = loader
        self._name = name
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        self._observer.begin_module(self._name)  # an extension module may run all its code here
        try:
            module: ModuleType | None = self._loader.create_module(spec)
        except BaseException as error:
            self._observer.end_module(self._name, error, None)
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
            self._observer.end_module(self._name, error, module)
