"""Placeholders in large host tensors, in Python.

In: nothing. Out: once torch is imported, the op observer follows host tensors (observer/host_tensors.cpp), and pickling
the memory of one counts as a read of its placeholders, because their bytes leave the memory that is followed. Ranks
that are forked from a zygote with torch inherit this from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

from rank_runtime.module_hooks import after_import


def watch_host_tensors() -> None:
    """Follow host tensors from the import of torch on; programs build models before they use a GPU."""
    after_import("torch", _watch)


def _watch(torch: Any) -> None:
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # the fake libraries are not loaded
        library.maya_watch_host_tensors()
        _watch_pickles(torch, library)


def _watch_pickles(torch: Any, library: ctypes.CDLL) -> None:
    has_placeholder, report_read = library.maya_host_has_placeholder, library.maya_host_report_read
    has_placeholder.argtypes, has_placeholder.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_bool
    report_read.argtypes, report_read.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_bool

    def count_read(storage: Any) -> None:
        if storage.device.type != "cpu" or not has_placeholder(storage.data_ptr(), storage.nbytes()):
            return
        if report_read(b"pickle", storage.nbytes()):
            raise RuntimeError("--strict-values: pickle reads placeholder values")

    for owner, untyped in (
        (torch.storage._StorageBase, lambda storage: storage),
        (torch.storage.TypedStorage, lambda storage: storage._untyped_storage),
    ):
        _wrap_reduce(owner, lambda storage, untyped=untyped: count_read(untyped(storage)))


def _wrap_reduce(owner: Any, before: Any) -> None:
    real = owner.__reduce__
    if hasattr(real, "__wrapped__"):
        return

    @functools.wraps(real)
    def __reduce__(self: Any) -> Any:
        before(self)
        return real(self)

    owner.__reduce__ = __reduce__
