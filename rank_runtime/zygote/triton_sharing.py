"""Lets the ranks of a job compile equal Triton kernels once: the program's own, and candidates that Inductor tries.

In: Triton's calls to its cache. Out: a rank that does not find a kernel which another rank compiles right now waits for
it and loads the result. docs/internals.md lists the functions of Triton that are wrapped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from rank_runtime.module_hooks import after_import
from rank_runtime.zygote.compile_lock import CompileLock

_MOST_SECONDS = 600.0


def share_triton_kernels(environment: Mapping[str, str]) -> None:
    """Wrap Triton's compiler when it is imported."""
    folder = environment.get("TRITON_CACHE_DIR")
    if folder:
        after_import("triton.compiler.compiler", _KernelSharing(Path(folder)).wrap)


class _Thread(threading.local):
    depth = 0  # of calls of the compiler
    locked: str | None = None  # the kernel that it has locked


class _KernelSharing:
    def __init__(self, folder: Path) -> None:
        self._lock = CompileLock(folder, _MOST_SECONDS)
        self._thread = _Thread()

    def wrap(self, compiler: Any) -> None:
        if not hasattr(compiler, "get_cache_manager") or not hasattr(compiler, "compile"):
            return
        compiler.get_cache_manager = self._managers(compiler.get_cache_manager)
        compile_kernel = compiler.compile
        compiles = self._compiles(compile_kernel)
        for module in list(sys.modules.values()):  # also modules that have imported the function by name
            if getattr(module, "__dict__", {}).get("compile") is compile_kernel:
                setattr(module, "compile", compiles)  # noqa: B010

    def _compiles(self, compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compile_kernel)
        def compiles(*arguments: Any, **named: Any) -> Any:
            thread = self._thread
            thread.depth += 1
            try:
                return compile_kernel(*arguments, **named)
            finally:
                thread.depth -= 1
                if thread.depth == 0 and thread.locked is not None:
                    self._lock.release(thread.locked)
                    thread.locked = None

        return compiles

    def _managers(self, manager_of: Callable[..., Any]) -> Callable[..., Any]:
        """Cache managers, each of which knows the files of one kernel."""

        @wraps(manager_of)
        def waiting(key: str, *arguments: Any, **named: Any) -> Any:
            manager = manager_of(key, *arguments, **named)
            get_group = manager.get_group

            @wraps(get_group)
            def wait_and_get(*files: Any) -> Any:
                return get_group(*files) or self._wait_and_get(key, lambda: get_group(*files))

            manager.get_group = wait_and_get
            return manager

        return waiting

    def _wait_and_get(self, key: str, get_group: Callable[[], Any]) -> Any:
        thread = self._thread
        if thread.depth == 0 or thread.locked is not None:
            return get_group()
        state = self._lock.acquire(key)
        group = get_group()  # the rank that had the lock may have written it
        if state == "free" and not group:
            thread.locked = key
        elif state is not None:
            self._lock.release(key)
        return group
