"""The device of each stream, from the STREAM_CREATE records of a trace.

In: a trace. Out: the default stream of each stream's device, which identifies the device in a trace, and the streams
that wait for it. A process that uses one device has one default stream, number 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from maya.trace.format import RecordKind
from maya.trace.reader import Trace


@dataclass(frozen=True)
class StreamTable:
    """The streams of one process."""

    homes: dict[int, int]  # stream -> default stream of its device, if that is not 0
    blocking: list[int]  # streams that wait for the default stream of their device, and it for them

    def home(self, stream: int) -> int:
        return self.homes.get(stream, 0)

    def beside(self, home: int) -> list[int]:
        """The blocking streams of a default stream."""
        return [stream for stream in self.blocking if self.home(stream) == home]


def find_streams(trace: Trace) -> StreamTable:
    homes: dict[int, int] = {}
    blocking: list[int] = []
    for record in trace.select(RecordKind.STREAM_CREATE):
        signature = trace.signature(int(record["signature"])) if record["signature"] else {}
        stream = int(record["stream"])
        if signature.get("home"):
            homes[stream] = int(signature["home"])
        if signature.get("blocking"):
            blocking.append(stream)
    return StreamTable(homes, blocking)
