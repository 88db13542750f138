"""Completes the collectives that are queued when a rank's Python program ends (shim/device/drain.c).

In: the end of the interpreter. Out: in a program that has succeeded, `complete_collectives` returns when the streams
hold no more collectives. It must wait while process groups and their watchdogs still exist, because destroying a
process group aborts its collectives. If the exit status is not known yet (`sys.exit`, a module run with -m), the
process groups are kept alive instead, and `exit()`, which knows the status, waits.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.machinery import SourceFileLoader
from typing import Any

_libc = ctypes.CDLL(None)


def complete_collectives() -> None:
    """Wait for the queued collectives. Python's signal handlers run meanwhile; one that raises ends the wait."""
    complete = _libc.maya_complete_collectives
    complete.restype = ctypes.c_bool
    try:
        while not complete():  # a signal arrived: Python runs its handler before the next call
            pass
    except BaseException as exception:
        _libc.maya_give_up_collectives()
        if not isinstance(exception, KeyboardInterrupt | SystemExit):
            raise


def keep_process_groups() -> bool:
    """Keep process groups alive until the process ends, if the exit status may be 0 and collectives are queued. Returns
    whether they are kept."""
    queued = _libc.maya_collectives_are_queued
    queued.restype = ctypes.c_bool
    if _has_failed() or not queued():
        return False
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(getattr(module, "_pg_map", ())):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # never released
    _libc.maya_keep_recorder()
    return True


def status_will_be_zero() -> bool:
    """Whether the process will certainly exit with status 0, because its script has run to the end. In that case Python
    deletes `__main__.__file__`; it does not after `SystemExit`. An uncaught exception is stored in `sys`. For a module
    run with -m, runpy runs the code, and the status cannot be seen."""
    main: Any = sys.modules.get("__main__")
    if main is None or getattr(main, "__spec__", None) is not None or hasattr(main, "__file__"):
        return False
    if not isinstance(getattr(main, "__loader__", None), SourceFileLoader) or sys.flags.inspect:
        return False  # there was no script, or Python continues interactively
    if _has_failed():
        return False
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return False  # Python will report this, with a status of its own
    return bool(_libc.maya_python_returned())


def _has_failed() -> bool:
    return any(hasattr(sys, name) for name in ("last_exc", "last_value"))
