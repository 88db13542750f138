"""Thread groups of a rank, which share a host clock: the main thread, and threads that run while it waits for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.replay.record_kinds import REPLAYED_KINDS
from maya.trace import RecordKind
from maya.trace.reader import Records

_MAIN = 1
_WHILE_MAIN_WAITS = "pt_autograd"

Columns = Mapping[str, npt.NDArray[Any]] | Records  # of a trace's records, by name


def _thread_name(text: str) -> str:
    """The name in the signature of a THREAD record."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return ""
    return str(found.get("thread", "")) if isinstance(found, dict) else ""


def thread_groups(records: Columns, strings: Sequence[str]) -> npt.NDArray[np.int64]:
    """For each thread's number its group: 0 is the main thread's, others are 1, 2, … in order of appearance. A thread
    without a name belongs to group 0. -1: a thread without replayed records, such as those of the virtual device."""
    threads = records["thread"]
    groups = np.full(int(threads.max(initial=0)) + 1, -1, dtype=np.int64)
    if len(groups) <= _MAIN + 1:  # usually the main thread alone
        groups[:] = 0
        return groups
    groups[threads[REPLAYED_KINDS[records["kind"]]]] = 0
    groups[_MAIN] = 0
    found = 0
    for at in np.flatnonzero(records["kind"] == RecordKind.THREAD).tolist():
        thread = int(threads[at])
        text = strings[int(records["signature"][at])]
        name = _thread_name(text)
        if thread != _MAIN and groups[thread] == 0 and not name.startswith(_WHILE_MAIN_WAITS):
            found += 1
            groups[thread] = found
    return groups
