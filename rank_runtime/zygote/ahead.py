"""Done once, ahead of the fork, because every rank would otherwise do it for itself, and into memory of its own.

In: what was imported. Out: the op observer knows torch's operators, and those that cannot launch anything announce
nothing; Python's types have the numbers by which it recognises them. Nothing of it can be seen from a script.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

_NAME = "__maya_has_no_such_attribute__"


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
