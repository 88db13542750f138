"""The end of a rank's Python program: collectives that it has queued are completed first (shim/device/drain.c).

In: the end of the interpreter. Out: in a program that has succeeded, a return when its streams hold no collectives any
more; it waits while process groups and their watchdogs still live, since a process group that ends aborts them. Where
the exit status is not known yet (`sys.exit`, a module run with -m), the process groups are kept instead, and `exit()`,
which knows it, waits.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.machinery import SourceFileLoader
from typing import Any

_libc = ctypes.CDLL(None)


def complete_collectives() -> None:
    """Returns at once if nothing is queued. Python's signal handlers run meanwhile; one that ends the program ends the
    wait."""
    complete = _libc.maya_complete_collectives
    complete.restype = ctypes.c_bool
    try:
        while not complete():  # a signal has come: its handler runs now
            pass
    except BaseException as exception:
        _libc.maya_give_up_collectives()
        if not isinstance(exception, KeyboardInterrupt | SystemExit):
            raise


def keep_process_groups() -> bool:
    """Keep them alive until the process ends, if the status may be 0 and collectives are queued. Whether they are."""
    queued = _libc.maya_collectives_are_queued
    queued.restype = ctypes.c_bool
    if _has_failed() or not queued():
        return False
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(getattr(module, "_pg_map", ())):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # never given back
    _libc.maya_keep_recorder()
    return True


def status_will_be_zero() -> bool:
    """Whether the process will certainly end with this status, because its script has run to the end. Python then takes
    `__file__` away; it does not when an exception asks for another status. An exception that nobody caught is left in
    `sys`, and a module that is run (-m) is called by Python's own code, which keeps the status that it asks for."""
    main: Any = sys.modules.get("__main__")
    if main is None or getattr(main, "__spec__", None) is not None or hasattr(main, "__file__"):
        return False
    if not isinstance(getattr(main, "__loader__", None), SourceFileLoader) or sys.flags.inspect:
        return False  # there was no script, or Python has not done with it
    if _has_failed():
        return False
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return False  # Python will complain, and have a status for that
    return bool(_libc.maya_python_returned())


def _has_failed() -> bool:
    return any(hasattr(sys, name) for name in ("last_exc", "last_value"))
