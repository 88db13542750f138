"""Prepares a Python process to become a rank when it first uses a GPU.

In: a process that has just started. Out: at once, Python's clocks, which show real time until the process is a rank.
When torch is imported, also the wrappers that ranks have and an `atexit` function that completes queued collectives. A
process that neither reads clocks nor imports torch is not affected.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

from rank_runtime.module_hooks import after_import
from rank_runtime.zygote.default_group import observe_default_group
from rank_runtime.zygote.drain import complete_collectives, keep_process_groups, status_will_be_zero
from rank_runtime.zygote.python_clock import PythonClock


def prepare(root: str) -> None:
    """Runs before the program. `root`: the folder of the package rank_runtime."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "maya_rank_has_appeared"):  # the libraries were not preloaded
        return
    appeared = library.maya_rank_has_appeared
    appeared.argtypes, appeared.restype = [], ctypes.c_bool
    atexit.register(_end, appeared)  # the first to be registered, so the last to be called
    PythonClock(os.environ, appeared).wait_to_appear()
    observe_default_group()
    after_import("torch", lambda _: _torch_is_imported(root))


def _torch_is_imported(root: str) -> None:
    """Give the process what ranks of maya-torchrun have."""
    ctypes.CDLL(None).maya_skip_destructors()
    _share(root)


def _share(root: str) -> None:
    """Let the process share what it compiles with the other ranks."""
    before = frozenset(sys.modules)
    sys.path.insert(0, root)
    try:
        from rank_runtime.zygote.compile_sharing import share_compiled_graphs
        from rank_runtime.zygote.compile_trials import hide_compile_trials
        from rank_runtime.zygote.triton_sharing import share_triton_kernels
    finally:
        sys.path.remove(root)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "rank_runtime":
                del sys.modules[name]
    hide_compile_trials()
    share_compiled_graphs(os.environ)
    share_triton_kernels(os.environ)


def _end(appeared: ctypes._FuncPointer) -> None:
    if not appeared():
        return
    if status_will_be_zero():
        complete_collectives()
    else:
        keep_process_groups()
