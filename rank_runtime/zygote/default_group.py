"""Tells a process its place (rank and world size) when the program makes torch's default process group.

In: the call of torch.distributed that creates the group, whoever launched the process. Out: the place and the job's
name in the C library (`maya_set_place`), before the group makes its first communicator. The ranks agree on the name
through the group's store: the first to arrive chooses it. docs/internals.md lists the function of torch that is
wrapped.
"""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Mapping
from functools import wraps
from typing import Any

from rank_runtime.module_hooks import after_import

_MODULE, _CREATES_GROUPS = "torch.distributed.distributed_c10d", "_new_process_group_helper"
_KEY = "maya/job"


def observe_default_group() -> None:
    """Watch for the default process group, once the module that makes it is imported."""
    after_import(_MODULE, _observe)


def _observe(module: Any) -> None:
    function = getattr(module, _CREATES_GROUPS, None)
    if function is None:  # another torch: the environment or the first communicator tells the place
        return
    signature = inspect.signature(function)

    @wraps(function)
    def observed(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError:
            return function(*arguments, **named)  # it says itself what is wrong
        if not given.get("global_ranks_in_group"):  # empty: the default group
            _tell_place(given)
        return function(*arguments, **named)

    setattr(module, _CREATES_GROUPS, observed)


def _tell_place(given: Mapping[str, Any]) -> None:
    rank, ranks, store = given.get("group_rank"), given.get("group_size"), given.get("store")
    if not isinstance(rank, int) or not isinstance(ranks, int) or rank < 0 or store is None:
        return  # MPI: the backend finds out
    chosen = os.urandom(16).hex()
    if ranks > 1:
        try:
            found = store.compare_set(_KEY, "", chosen)
        except (RuntimeError, NotImplementedError):  # a store that cannot
            return
        chosen = found.decode() if isinstance(found, bytes) else str(found)
    ctypes.CDLL(None).maya_set_place(ctypes.c_int(rank), ctypes.c_int(ranks), f"group {chosen}".encode())
