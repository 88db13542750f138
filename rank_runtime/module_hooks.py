"""Calls a function when a module has been imported, so that functions of torch can be wrapped without importing torch.

In: the name of a module, and a function. Out: the function is called with the module: at once if it is imported
already, otherwise right after its code has run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[Any], None]) -> None:
    """Call `action` with the module `name`, now or when it is imported."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Hook(name, action))


class _Hook(MetaPathFinder):
    """Stands before the finders of Python until the module is imported."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
