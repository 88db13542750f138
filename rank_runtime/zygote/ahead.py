"""Done once, ahead of the fork, because every rank would otherwise do it for itself, and into memory of its own.

In: what was imported. Out: the op observer knows torch's operators, and those that cannot launch anything announce
nothing; Python's types have the numbers by which it recognises them; tables have room for what ranks will add to them.
Nothing of it can be seen from a script.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_NAME = "__maya_has_no_such_attribute__"
_INSTANCES = 1 << 14  # more than a rank adds


def describe_operators() -> None:
    """If torch is there and its ops are observed."""
    with contextlib.suppress(AttributeError):  # the fake libraries are not loaded
        ctypes.CDLL(None).maya_prepare_observer()


def number_types() -> None:
    """Python numbers a type when an attribute is first looked for in it, and notes the number in the type."""
    for item in gc.get_objects():
        if issubclass(type(item), type):  # and not isinstance, which asks the object
            with contextlib.suppress(AttributeError):
                type.__getattribute__(item, _NAME)


def make_room_for_instances() -> None:
    """pybind11 keeps a hash table of all objects of C++ that Python has seen. Whoever adds the one too many for its
    size writes to every entry: a megabyte of each rank's own. So it is made to grow here; it does not shrink again."""
    with contextlib.suppress(KeyError, AttributeError):  # torch is not loaded, or not as usual
        of_torch = sys.modules["torch"]._C
        del [of_torch.DispatchKeySet(of_torch.DispatchKey.CPU) for _ in range(_INSTANCES)][:]
