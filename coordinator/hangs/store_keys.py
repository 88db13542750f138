"""The key of the store that a rank waits for.

In: the rank's stacks and values of variables. Out: the key, from the source of the call: its argument is evaluated with
the values of the frame. Empty if that is not possible.
"""

from __future__ import annotations

from coordinator.hangs.frame_values import RankValues, Unknown
from coordinator.hangs.source_names import call_arguments
from maya.hangs.python_stacks import Stacks

_WAITING_CALLS = ("get", "wait", "multi_get")


def awaited_key(stacks: Stacks, values: RankValues) -> str:
    """The key, or several with commas between them."""
    if not stacks.main:
        return ""
    frame = stacks.main[0]
    arguments = call_arguments(frame, _WAITING_CALLS)
    if not arguments:
        return ""
    try:
        found = values.evaluate(frame.file, frame.function, arguments[0])
    except Unknown:
        return ""
    if isinstance(found, list):
        return ", ".join(map(str, found))
    return found if isinstance(found, str) else ""
