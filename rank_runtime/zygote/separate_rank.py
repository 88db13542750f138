"""The start of a rank that is a Python process of its own instead of a fork of the zygote.

In: the folder `entry`, which Python found on PYTHONPATH. Out: an environment without that folder, for the rank's
children; virtual clocks, if the job's are; and an `atexit` function that completes the queued collectives.
"""

from __future__ import annotations

import atexit
import ctypes
import os

from rank_runtime.module_hooks import after_import
from rank_runtime.zygote.compile_sharing import share_compiled_graphs
from rank_runtime.zygote.compile_trials import hide_compile_trials
from rank_runtime.zygote.drain import complete_collectives, keep_process_groups, status_will_be_zero
from rank_runtime.zygote.host_tensors import watch_host_tensors
from rank_runtime.zygote.process_groups import observe_process_groups
from rank_runtime.zygote.python_clock import PythonClock
from rank_runtime.zygote.triton_sharing import share_triton_kernels


def begin_separate_rank(entry: str) -> None:
    """Runs before the program, so that the function registered here is the last `atexit` function to be called."""
    rest = [part for part in os.environ["PYTHONPATH"].split(os.pathsep) if part != entry]
    del os.environ["PYTHONPATH"]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    PythonClock(os.environ).begin()
    observe_process_groups(os.environ)
    hide_compile_trials()
    watch_host_tensors()
    share_compiled_graphs(os.environ)
    share_triton_kernels(os.environ)
    if hasattr(ctypes.CDLL(None), "maya_complete_collectives"):  # the fake libraries are loaded
        atexit.register(_end)
        after_import("torch", lambda _: ctypes.CDLL(None).maya_skip_destructors())


def _end() -> None:
    if status_will_be_zero():
        complete_collectives()
    else:
        keep_process_groups()
