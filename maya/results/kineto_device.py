"""The device part of a rank's Kineto trace: kernels, copies and collectives on streams, and annotations.

In: a `KinetoWindow`. Out: events, with a flow from each launch to its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from maya.results.kineto_names import (
    collective_arguments,
    collective_kernel,
    copy_name,
    library_name,
)
from maya.results.kineto_window import KinetoWindow, group_description, group_name, stream_number
from maya.results.trace_events import Event, flow, span
from maya.trace import Flag, RecordKind
from maya.trace.demangle import declarations
from maya.util.arrays import Indices

_CONTEXT = 1
_WARP = 32


class DeviceEvents:
    """The device events of one rank."""

    def __init__(self, window: KinetoWindow) -> None:
        self.window = window
        self.group = window.group
        self.rank = window.rank

    def kernels(self) -> Iterator[Event]:
        """Kernels, copies, memsets and collectives, with flows from their launches."""
        group, rank_class = self.group, self.group.rank_class
        records = rank_class.trace.records
        start, end, arrival = (array[:, 0] for array in (group.start_ns, group.end_ns, group.arrival_ns))
        groups = self._groups()
        for row in self._in_order():
            position = int(rank_class.records[row])
            record = records[position]
            launched = int(self._launches[position])
            correlation = self.window.correlations.get(launched, -1)
            stream = stream_number(int(record["stream"]))
            arguments: dict[str, Any] = {"External id": self.window.op_ids.get(int(record["op"]), 0)}
            where = {
                "device": self.window.device_number,
                "context": _CONTEXT,
                "stream": stream,
                "correlation": correlation,
            }
            begin, stop = int(start[row]), int(end[row])
            if rank_class.call[row] >= 0:
                if row not in groups:
                    continue
                begin, stop = int(arrival[row]), max(int(end[other]) for other in groups[row])
                category, name, more = self._collective(row, record, len(groups[row]))
                arguments |= {"queued": 0, **where, **more}
            else:
                category, name, more = self._kernel(row, record, stop - begin)
                arguments |= ({"queued": 0} if category == "kernel" else {}) | where | more
            yield span(category, name, self.window.device_number, stream, begin, stop, arguments)
            launch = records[launched]
            if correlation >= 0:
                tid = self.window.threads[int(launch["thread"])]
                yield flow(
                    "ac2g", correlation, self.window.pid, tid, int(self.window.spans.begin[launched]), ends=False
                )
                yield flow("ac2g", correlation, self.window.device_number, stream, begin, ends=True)

    def _in_order(self) -> list[int]:
        """Rows by time: their order in the trace depends on races between threads."""
        rows = np.arange(self.window.rows.start, self.window.rows.stop)
        streams = self.group.rank_class.trace.records["stream"][self.group.rank_class.records[rows]]
        found: list[int] = rows[np.lexsort((rows, streams, self.group.arrival_ns[rows, 0]))].tolist()
        return found

    def _groups(self) -> dict[int, list[int]]:
        """The collectives of one NCCL group are one kernel: row of the first -> rows of all."""
        rank_class = self.group.rank_class
        records = rank_class.trace.records
        groups: dict[int, list[int]] = {}
        last: dict[int, int] = {}  # stream -> the first of its latest group
        for row in self.window.rows:
            if rank_class.call[row] < 0:
                continue
            record = records[int(rank_class.records[row])]
            stream = int(record["stream"])
            if int(record["flags"]) & Flag.GROUPED and stream in last:
                groups[last[stream]].append(row)
            else:
                last[stream] = row
                groups[row] = [row]
        return groups

    def _collective(self, row: int, record: np.void, together: int) -> tuple[str, str, Event]:
        rank_class = self.group.rank_class
        call = rank_class.calls[int(rank_class.call[row])]
        signature = rank_class.trace.signature(int(record["signature"]))
        members = self.window.communicators.get(call.communicator, (self.rank,))
        group, description = group_name(call.communicator), group_description(call.communicator)
        arguments = collective_arguments(call, self.rank, members, group, description, int(record["value"]))
        started = int(self.group.start_ns[row, 0])
        arguments["Maya origin"] = f"network {self.window.result.timeline.network_origin}"
        arguments["Maya waited us"] = (started - int(self.group.arrival_ns[row, 0])) / 1000
        if together > 1:
            arguments["Maya grouped"] = together
        return "kernel", collective_kernel(call, str(signature.get("op", ""))), arguments

    def _kernel(self, row: int, record: np.void, ns: int) -> tuple[str, str, Event]:
        rank_class = self.group.rank_class
        kind = int(record["kind"])
        item, estimate = (
            rank_class.kernels[int(rank_class.kernel[row])],
            rank_class.estimates[int(rank_class.kernel[row])],
        )
        signature = rank_class.trace.signature(int(record["signature"]))
        origin = {"Maya origin": estimate.origin.value}
        if kind in (RecordKind.MEMCPY, RecordKind.MEMSET):
            size = int(record["value"])
            rate = {"bytes": size, "memory bandwidth (GB/s)": round(size / ns, 6) if ns else 0.0}
            if kind == RecordKind.MEMSET:
                return "gpu_memset", "Memset (Device)", rate | origin
            return "gpu_memcpy", copy_name(signature), rate | origin
        if kind == RecordKind.LIBRARY:
            return "kernel", library_name(item), origin
        name = str(signature.get("kernel", ""))
        grid, block = signature.get("grid", [1, 1, 1]), signature.get("block", [1, 1, 1])
        blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        sms = self.window.result.timeline.device.sm_count
        shape = {
            "shared memory": signature.get("shared", 0),
            "blocks per SM": round(blocks / sms, 6),
            "warps per SM": round(blocks * -(-threads // _WARP) / sms, 6),
            "grid": grid,
            "block": block,
        }
        return "kernel", self._kernel_names.get(name, name), shape | origin

    def annotations(self) -> Iterator[Event]:
        """The kernels launched inside each annotation, from the first to the last on each stream."""
        rank_class = self.group.rank_class
        records = rank_class.trace.records
        threads = records["thread"][rank_class.records]
        for position in self.window.positions:
            record = records[position]
            if int(record["kind"]) != RecordKind.ANNOTATION:
                continue
            first, last = np.searchsorted(rank_class.records, [self.window.spans.opened[position], position]).tolist()
            rows = np.arange(first, last)
            rows = rows[threads[rows] == record["thread"]]
            name = str(rank_class.trace.signature(int(record["signature"])).get("op", ""))
            yield from self._on_streams(name, rows, self.window.op_ids[int(record["op"])])

    def _on_streams(self, name: str, rows: Indices, external: int) -> Iterator[Event]:
        rank_class = self.group.rank_class
        rows = rows[(rows >= self.window.rows.start) & (rows < self.window.rows.stop)]
        streams = rank_class.trace.records["stream"][rank_class.records[rows]]
        for stream in np.unique(streams).tolist():
            own = rows[streams == stream]
            begin, end = int(self.group.arrival_ns[own, 0].min()), int(self.group.end_ns[own, 0].max())
            tid = stream_number(stream)
            arguments = {"External id": external}
            yield span("gpu_user_annotation", name, self.window.device_number, tid, begin, end, arguments)

    @cached_property
    def _kernel_names(self) -> dict[str, str]:
        trace = self.group.rank_class.trace
        return declarations(
            str(trace.signature(number).get("kernel", ""))
            for number in np.unique(trace.kernels()["signature"]).tolist()
        )

    @cached_property
    def _launches(self) -> Indices:
        """For each record inside a graph, the record of the graph's launch; for others the record itself."""
        records = self.group.rank_class.trace.records
        found = np.arange(len(records))
        from_graph = (records["flags"] & Flag.FROM_GRAPH) != 0
        graphs = np.where(records["kind"] == RecordKind.GRAPH_LAUNCH, found, 0)
        found[from_graph] = np.maximum.accumulate(graphs)[from_graph]
        return found
