"""A rank that was not forked from a zygote, but is a Python process of its own: its clocks are virtual, if those of the
job are, and it completes its collectives when it ends.

In: the folder that brought us here. Out: an environment without it, since the rank's children do not need it.
"""

from __future__ import annotations

import atexit
import ctypes
import os

from rank_runtime.zygote.clock import Clock
from rank_runtime.zygote.drain import complete_collectives, keep_process_groups, status_will_be_zero


def begin_alone(entry: str) -> None:
    """Before the program begins, so that our function is the last of `atexit` to be called."""
    rest = [part for part in os.environ["PYTHONPATH"].split(os.pathsep) if part != entry]
    del os.environ["PYTHONPATH"]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    Clock(os.environ).begin()
    if hasattr(ctypes.CDLL(None), "maya_complete_collectives"):  # otherwise the fake libraries are not loaded
        atexit.register(_end)


def _end() -> None:
    if status_will_be_zero():
        complete_collectives()
    else:
        keep_process_groups()
