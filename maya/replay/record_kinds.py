"""Which records of a trace matter to a replay: sets of record kinds and NCCL calls that several modules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from maya.trace import RecordKind, Trace
from rank_runtime.trace_format import UNREPLAYED_KINDS

KERNEL_KINDS = (RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMCPY, RecordKind.MEMSET)  # an estimator times them
P2P_CALLS = frozenset({"ncclSend", "ncclRecv"})


def among(*kinds: RecordKind) -> npt.NDArray[np.bool_]:
    """For each possible kind, whether it is among these."""
    table = np.zeros(256, dtype=bool)
    table[list(kinds)] = True
    return table


# Records that cost the host time or act on a stream. A replay skips all others.
REPLAYED_KINDS = ~among(*UNREPLAYED_KINDS)
# Without cudaMalloc and cudaFree: a replay needs them only where they cost the host time.
REPLAYED_KINDS_WITHOUT_ALLOCATIONS = REPLAYED_KINDS & ~among(RecordKind.MALLOC, RecordKind.FREE)


def is_comm_init(trace: Trace) -> npt.NDArray[np.bool_]:
    """For each record, whether it is a communicator init, which lists the members."""
    records = trace.records
    collective = records["kind"] == RecordKind.COLLECTIVE
    inits = [
        number
        for number in np.unique(records["signature"][collective]).tolist()
        if "members" in trace.signature(number)
    ]
    found: npt.NDArray[np.bool_] = collective & np.isin(records["signature"], np.array(inits, dtype=np.uint32))
    return found
