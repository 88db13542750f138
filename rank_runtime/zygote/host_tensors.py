"""Placeholders in large host tensors, for ranks that import torch themselves.

In: nothing. Out: once torch is imported, the op observer follows host tensors (observer/host_tensors.cpp). Ranks that
are forked from a zygote with torch inherit this from it.
"""

from __future__ import annotations

import contextlib
import ctypes

from rank_runtime.module_hooks import after_import


def watch_host_tensors() -> None:
    """Follow host tensors from the import of torch on; programs build models before they use a GPU."""
    after_import("torch", lambda _: _watch())


def _watch() -> None:
    with contextlib.suppress(AttributeError):  # the fake libraries are not loaded
        ctypes.CDLL(None).maya_watch_host_tensors()
