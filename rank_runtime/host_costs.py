"""Costs of the host that the virtual clock of a rank (C) and the replay (Python) both charge.

Declared here once: the build generates `host_costs.h` from this module (build/declared_headers.py), and
`maya.hosts.costs` reads and checks the values. A rank gets them in MAYA_CLOCK_COSTS.
"""

from __future__ import annotations

from collections.abc import Mapping

from rank_runtime.trace_format import RecordKind

# In ns.
TIMES: Mapping[str, str] = {
    "op": "an ATen op, with the Python around it",
    "latency": "from a launch on the host to its start on an idle device",
    "wake": "until a host thread continues that waited for the device",
    "clock_read": "one read of the program's clock",
}
# In thousandths.
FACTORS: Mapping[str, str] = {
    "overlap": "how much longer a kernel takes while a collective runs beside it",
}
# Kinds of records that stand for a call with a cost of its own. Other kinds are made by such calls, or cost nothing.
CALLS = (
    RecordKind.KERNEL,
    RecordKind.LIBRARY,
    RecordKind.MEMCPY,
    RecordKind.MEMSET,
    RecordKind.MALLOC,
    RecordKind.FREE,
    RecordKind.EVENT_RECORD,
    RecordKind.STREAM_WAIT,
    RecordKind.SYNCHRONIZE,
    RecordKind.HOST_FUNCTION,
    RecordKind.COLLECTIVE,
    RecordKind.GRAPH_LAUNCH,
    RecordKind.STREAM_CREATE,
)


def call_key(kind: RecordKind) -> str:
    """The name of a call's cost, in files and in MAYA_CLOCK_COSTS."""
    return kind.name.lower()
