"""Preparations that the zygote makes once, before the fork. Otherwise every rank would make them, in memory of its own.

In: the imported modules. Out: the op observer knows torch's operators and observes only those that may launch kernels;
Python types have their version tags; pybind11's instance table has room for the objects of a rank. A script cannot see
any of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_NAME = "__maya_has_no_such_attribute__"
_INSTANCES = 1 << 14  # more than a rank adds


def prepare_observer() -> None:
    """Let the op observer look up all operators, if torch is loaded and its ops are observed."""
    with contextlib.suppress(AttributeError):  # the fake libraries are not loaded
        ctypes.CDLL(None).maya_prepare_observer()


def assign_type_versions() -> None:
    """Look up an attribute in every type: at the first lookup CPython writes a version tag to the type."""
    for item in gc.get_objects():
        if issubclass(type(item), type):  # unlike isinstance, this does not call into the object
            with contextlib.suppress(AttributeError):
                type.__getattribute__(item, _NAME)


def grow_pybind_table() -> None:
    """Grow pybind11's hash table of the C++ objects that Python has seen. A rank that exceeded its size would rehash
    it, which writes a megabyte of its own memory. The table does not shrink again."""
    with contextlib.suppress(KeyError, AttributeError):  # torch is not loaded, or differs from the known releases
        torch_c = sys.modules["torch"]._C
        del [torch_c.DispatchKeySet(torch_c.DispatchKey.CPU) for _ in range(_INSTANCES)][:]
