"""Makes the objects that ranks share immortal, so that using them does not copy the pages they lie on.

CPython stores an object's reference count in the object itself, so that even calling a function writes to it. Since
Python 3.12 some objects (`None` and the like) are immortal: their count never changes (PEP 683). Before the fork the
zygote makes all its objects immortal. They live as long as the process. So objects that a rank stores in them are not
deleted at interpreter shutdown, which Python does not promise anyway; the variables of the script are.
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

FEWEST_RANKS = 64  # with fewer it is not worthwhile: it takes seconds, and saves some ten megabytes per rank

_COUNT_BYTES = 4  # the part of the reference count that marks an object as immortal


def make_objects_immortal() -> None:
    """Make every object of this process immortal, if this Python has immortal objects."""
    if sys.version_info < (3, 12) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return
    addresses = _addresses(gc.get_objects())
    copy = map(ctypes.memmove, addresses, itertools.repeat(id(None)), itertools.repeat(_COUNT_BYTES))
    collections.deque(copy, maxlen=0)


def _addresses(roots: list[object]) -> array[int]:
    """The addresses of all objects that can be reached from `roots`. A child process finds them, because the search
    takes much memory, which would leave holes between shared objects."""
    listed = os.memfd_create("objects", os.MFD_CLOEXEC)
    child = ctypes.PyDLL(None).fork()  # os.fork would run the at-fork handlers
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


# The objects that a code object holds; the garbage collector does not report them. Its other attributes are computed.
_of_code = operator.attrgetter(
    *("co_consts", "co_names", "co_linetable", "co_exceptiontable", "co_filename", "co_name", "co_qualname")
)


def _reachable(roots: list[object]) -> dict[int, object]:
    """All objects that can be reached, by address. Objects made during the search must not be among them, because the
    parent process does not have these."""
    found: dict[int, object] = {}
    level = roots
    while level:
        fresh = dict(zip(map(id, level), level, strict=True))
        for address in fresh.keys() & found.keys():
            del fresh[address]
        for frame in [item for item in fresh.values() if type(item) is FrameType]:
            del fresh[id(frame)]  # may be this function's own, which holds objects made here
        found.update(fresh)
        level = gc.get_referents(*fresh.values())
        for item in fresh.values():
            if type(item) is CodeType:
                level += _of_code(item)
    return found


def _thread_dictionary() -> int:
    """The address of the thread's dictionary, which must be deleted with the thread: extensions store objects there
    to be notified of its end."""
    thread_dictionary = ctypes.pythonapi.PyThreadState_GetDict
    thread_dictionary.restype = ctypes.c_void_p
    return int(thread_dictionary() or 0)
