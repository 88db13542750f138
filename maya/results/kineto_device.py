"""A rank's device as torch.profiler shows it: kernels, copies and collectives on streams, annotations above them.

In: a `Drawing`. Out: events, with an arrow from each launch to its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from maya.results.drawing import Drawing, group_description, group_name, stream_number
from maya.results.trace_file import Event, flow, span
from maya.results.trace_names import (
    collective_arguments,
    collective_kernel,
    copy_name,
    kernel_names,
    library_name,
)
from maya.trace import Flag, RecordKind

_CONTEXT = 1
_WARP = 32


class DeviceEvents:
    """Of one rank."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.one = drawing.one
        self.rank = drawing.rank

    def works(self) -> Iterator[Event]:
        one, rank_class = self.one, self.one.rank_class
        records = rank_class.trace.records
        start, end, arrival = (array[:, 0] for array in (one.start_ns, one.end_ns, one.arrival_ns))
        groups = self._groups()
        for row in self._in_order():
            position = int(rank_class.records[row])
            record = records[position]
            launched = int(self._launches[position])
            correlation = self.drawing.correlations.get(launched, -1)
            stream = stream_number(int(record["stream"]))
            arguments: dict[str, Any] = {"External id": self.drawing.op_ids.get(int(record["op"]), 0)}
            where = {
                "device": self.drawing.device_number,
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
                category, name, more = self._work(row, record, stop - begin)
                arguments |= ({"queued": 0} if category == "kernel" else {}) | where | more
            yield span(category, name, self.drawing.device_number, stream, begin, stop, arguments)
            launch = records[launched]
            if correlation >= 0:
                tid = self.drawing.threads[int(launch["thread"])]
                yield flow(
                    "ac2g", correlation, self.drawing.pid, tid, int(self.drawing.spans.begin[launched]), ends=False
                )
                yield flow("ac2g", correlation, self.drawing.device_number, stream, begin, ends=True)

    def _in_order(self) -> list[int]:
        """Rows by time: those of different threads are in the trace as they raced."""
        rows = np.arange(self.drawing.rows.start, self.drawing.rows.stop)
        streams = self.one.rank_class.trace.records["stream"][self.one.rank_class.records[rows]]
        found: list[int] = rows[np.lexsort((rows, streams, self.one.arrival_ns[rows, 0]))].tolist()
        return found

    def _groups(self) -> dict[int, list[int]]:
        """Collectives of one NCCL group are one kernel: the row of the first -> rows of all."""
        rank_class = self.one.rank_class
        records = rank_class.trace.records
        groups: dict[int, list[int]] = {}
        last: dict[int, int] = {}  # stream -> the first of its latest group
        for row in self.drawing.rows:
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
        rank_class = self.one.rank_class
        call = rank_class.calls[int(rank_class.call[row])]
        signature = rank_class.trace.signature(int(record["signature"]))
        members = self.drawing.communicators.get(call.communicator, (self.rank,))
        group, description = group_name(call.communicator), group_description(call.communicator)
        arguments = collective_arguments(call, self.rank, members, group, description, int(record["value"]))
        started = int(self.one.start_ns[row, 0])
        arguments["Maya origin"] = f"network {self.drawing.result.timeline.network_origin}"
        arguments["Maya waited us"] = (started - int(self.one.arrival_ns[row, 0])) / 1000
        if together > 1:
            arguments["Maya grouped"] = together
        return "kernel", collective_kernel(call, str(signature.get("op", ""))), arguments

    def _work(self, row: int, record: np.void, ns: int) -> tuple[str, str, Event]:
        rank_class = self.one.rank_class
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
        sms = self.drawing.result.timeline.device.sm_count
        shape = {
            "shared memory": signature.get("shared", 0),
            "blocks per SM": round(blocks / sms, 6),
            "warps per SM": round(blocks * -(-threads // _WARP) / sms, 6),
            "grid": grid,
            "block": block,
        }
        return "kernel", self._kernel_names.get(name, name), shape | origin

    def annotations(self) -> Iterator[Event]:
        """What was launched in an annotation, from its first to its last work on each stream."""
        rank_class = self.one.rank_class
        records = rank_class.trace.records
        threads = records["thread"][rank_class.records]
        for position in self.drawing.positions:
            record = records[position]
            if int(record["kind"]) != RecordKind.ANNOTATION:
                continue
            first, last = np.searchsorted(rank_class.records, [self.drawing.spans.opened[position], position]).tolist()
            rows = np.arange(first, last)
            rows = rows[threads[rows] == record["thread"]]
            name = str(rank_class.trace.signature(int(record["signature"])).get("op", ""))
            yield from self._on_streams(name, rows, self.drawing.op_ids[int(record["op"])])

    def _on_streams(self, name: str, rows: npt.NDArray[np.intp], external: int) -> Iterator[Event]:
        rank_class = self.one.rank_class
        rows = rows[(rows >= self.drawing.rows.start) & (rows < self.drawing.rows.stop)]
        streams = rank_class.trace.records["stream"][rank_class.records[rows]]
        for stream in np.unique(streams).tolist():
            own = rows[streams == stream]
            begin, end = int(self.one.arrival_ns[own, 0].min()), int(self.one.end_ns[own, 0].max())
            tid = stream_number(stream)
            arguments = {"External id": external}
            yield span("gpu_user_annotation", name, self.drawing.device_number, tid, begin, end, arguments)

    @cached_property
    def _kernel_names(self) -> dict[str, str]:
        trace = self.one.rank_class.trace
        return kernel_names(
            str(trace.signature(number).get("kernel", ""))
            for number in np.unique(trace.kernels()["signature"]).tolist()
        )

    @cached_property
    def _launches(self) -> npt.NDArray[np.intp]:
        """Of each record that a graph launched: the record of the graph's launch; of others the record itself."""
        records = self.one.rank_class.trace.records
        found = np.arange(len(records))
        from_graph = (records["flags"] & Flag.FROM_GRAPH) != 0
        graphs = np.where(records["kind"] == RecordKind.GRAPH_LAUNCH, found, 0)
        found[from_graph] = np.maximum.accumulate(graphs)[from_graph]
        return found
