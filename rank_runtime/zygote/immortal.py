"""Objects that ranks share are not counted, so that using them does not copy the pages they lie on.

Python counts the references to an object in the object itself: whoever calls a function writes to it. From Python 3.12
on there are objects whose count never changes, `None` and the like (PEP 683). Before the fork the zygote makes all
objects it has such objects. They last as long as the process. So what a rank leaves in them is not deleted when the
interpreter ends, as Python never promised it would be; the variables of the script itself are.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import itertools
import operator
import os
import sys
import sysconfig
from array import array
from types import CodeType, FrameType

WORTHWHILE = 64  # ranks; it takes seconds, and saves each of them some ten megabytes

_COUNT_BYTES = 4  # the part of the reference count that says whether an object is immortal


def make_immortal() -> None:
    """Every object there is, where Python can do that."""
    if sys.version_info < (3, 12) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    addresses = _addresses(gc.get_objects())
    copy = map(ctypes.memmove, addresses, itertools.repeat(id(None)), itertools.repeat(_COUNT_BYTES))
    collections.deque(copy, maxlen=0)


def _addresses(roots: list[object]) -> array[int]:
    """Where the objects are that can be reached from these. To find them takes much memory, which would be left behind
    in pieces between what is shared; so another process does it."""
    listed = os.memfd_create("objects", os.MFD_CLOEXEC)
    child = ctypes.PyDLL(None).fork()  # not os.fork, which runs what others want to be run in a child
    if child == 0:
        status = 1
        try:
            addresses = _reachable(roots).keys() - {_thread_dictionary()}
            with open(listed, "wb", closefd=False) as file:
                array("Q", sorted(addresses)).tofile(file)
            status = 0
        finally:
            os._exit(status)
    found = array("Q")
    if os.waitpid(child, 0)[1] == 0:
        found.frombytes(os.pread(listed, os.fstat(listed).st_size, 0))
    os.close(listed)
    return found


# What a code object leads to, where the garbage collector does not look. Its other attributes are made when asked for.
_of_code = operator.attrgetter(
    *("co_consts", "co_names", "co_linetable", "co_exceptiontable", "co_filename", "co_name", "co_qualname")
)


def _reachable(roots: list[object]) -> dict[int, object]:
    """Objects by their addresses. None of them may be new, for they are to be found in the parent process, too."""
    found: dict[int, object] = {}
    level = roots
    while level:
        fresh = dict(zip(map(id, level), level, strict=True))
        for address in fresh.keys() & found.keys():
            del fresh[address]
        for frame in [item for item in fresh.values() if type(item) is FrameType]:
            del fresh[id(frame)]  # may be our own, and lead to what is made here
        found.update(fresh)
        level = gc.get_referents(*fresh.values())
        for item in fresh.values():
            if type(item) is CodeType:
                level += _of_code(item)
    return found


def _thread_dictionary() -> int:
    """Must go away with the thread: extensions leave objects there in order to be told."""
    thread_dictionary = ctypes.pythonapi.PyThreadState_GetDict
    thread_dictionary.restype = ctypes.c_void_p
    return int(thread_dictionary() or 0)
