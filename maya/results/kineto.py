"""A rank's timeline as torch.profiler would have written it: rank<N>_trace.json.gz, for Perfetto and HTA.

In: a `Result` whose timeline has the rank in detail. Out: a file with the last measured steps: ops and annotations of
the host's threads, calls of CUDA, and on the device's streams kernels, copies and collectives, each with its launch.

What differs from a profile of a real run is said in the arguments: "Maya origin" is where a duration comes from. The
rank's threads and streams are numbered as its trace does, from 7 on for streams, as CUDA does. As on a real GPU, a
collective's kernel is there from when its rank comes to it, so that waiting for others is part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.timeline.timeline import ClassTimeline, Timeline
from maya.devices import Device
from maya.results.host_spans import HostSpans, host_spans
from maya.results.result import Result
from maya.results.trace_file import Event, flow, process, span, thread, write_trace
from maya.results.trace_names import (
    collective_arguments,
    collective_kernel,
    copy_name,
    input_arguments,
    kernel_names,
    library_name,
)
from maya.trace import Flag, Kind

DEFAULT_STREAM = 7  # what CUPTI calls it
MOST_STEPS = 3
_FIRST_PROCESS = 10_000  # beyond the numbers of devices
_CONTEXT = 1
_WARP = 32

_CALLS = {
    Kind.KERNEL: "cudaLaunchKernel",
    Kind.LIBRARY: "cudaLaunchKernelExC",
    Kind.COLLECTIVE: "cudaLaunchKernelExC",
    Kind.MEMCPY: "cudaMemcpyAsync",
    Kind.MEMSET: "cudaMemsetAsync",
    Kind.MALLOC: "cudaMalloc",
    Kind.FREE: "cudaFree",
    Kind.EVENT_RECORD: "cudaEventRecord",
    Kind.STREAM_WAIT: "cudaStreamWaitEvent",
    Kind.HOST_FUNCTION: "cudaLaunchHostFunc",
    Kind.GRAPH_LAUNCH: "cudaGraphLaunch",
}
_WAITS = {"stream": "cudaStreamSynchronize", "event": "cudaEventSynchronize", "device": "cudaDeviceSynchronize"}


def write_rank_trace(result: Result, rank: int, folder: Path, most_steps: int = MOST_STEPS) -> Path:
    """Write the trace of a rank that the timeline has in detail."""
    drawing = _Drawing(result, rank, most_steps)
    path = folder / f"rank{rank}_trace.json.gz"
    write_trace(path, drawing.head(), drawing.events(), path.name.removesuffix(".gz"))
    return path


def class_of(timeline: Timeline, rank: int) -> ClassTimeline:
    """The class that a rank is in."""
    for one in timeline.classes:
        if rank in one.ranks:
            return one
    raise ValueError(f"rank {rank} asked nothing of its GPU, so there is nothing to draw")


def stream_number(stream: int) -> int:
    """What a stream of a trace is called in files."""
    return DEFAULT_STREAM + stream


@dataclass(frozen=True, eq=False)
class _Drawing:
    result: Result
    rank: int
    most_steps: int

    # ---- what is drawn ----

    @cached_property
    def one(self) -> ClassTimeline:
        return class_of(self.result.timeline, self.rank)

    @cached_property
    def steps(self) -> range:
        """The last measured steps, one after another."""
        last = self.result.steps.measured[-1]
        first = max(self.result.steps.measured[0], last - self.most_steps + 1)
        return range(first, last + 1)

    @cached_property
    def bounds(self) -> npt.NDArray[np.intp]:
        """Rows of program.records at which the steps begin and the last one ends."""
        number = next(at for at, one in enumerate(self.result.timeline.classes) if one is self.one)
        return self.result.steps.classes[number].rows[self.steps.start : self.steps.stop + 1]

    @cached_property
    def rows(self) -> range:
        return range(int(self.bounds[0]), int(self.bounds[-1]))

    @cached_property
    def spans(self) -> HostSpans:
        detail = self.result.timeline.details[self.rank]
        return host_spans(self.one.program.trace, detail.host_ns, self.result.timeline.settings.host)

    @cached_property
    def positions(self) -> range:
        """Records of the trace that are drawn: from the last launch before the steps to the first one after them."""
        records = self.one.program.records
        first = int(records[self.rows.start - 1]) + 1 if self.rows.start > 0 else 0
        last = int(records[self.rows.stop]) if self.rows.stop < len(records) else len(self.one.program.trace.records)
        return range(first, max(first, last))

    @property
    def pid(self) -> int:
        return _FIRST_PROCESS + self.rank

    @property
    def device_number(self) -> int:
        return self.rank % self.result.timeline.settings.ranks_per_node

    def tid(self, number: int) -> int:
        """Of a thread of the trace; the first is the process itself, as on Linux."""
        return self.pid + number - 1

    # ---- the file ----

    def head(self) -> Event:
        timeline = self.result.timeline
        communicators = self._communicators
        return {
            "schemaVersion": 1,
            "deviceProperties": [
                device_properties(timeline.device, number) for number in range(timeline.settings.ranks_per_node)
            ],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": timeline.world_size,
                "pg_count": len(communicators),
                "pg_config": [
                    {
                        "pg_name": _group_name(number),
                        "pg_desc": _group_description(number),
                        "backend_config": "cuda:nccl",
                        "pg_size": len(members),
                        "ranks": list(members),
                    }
                    for number, members in communicators.items()
                ],
                "nccl_version": "",
            },
            "record_shapes": 1,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 0,
        }

    def events(self) -> Iterator[Event]:
        yield from self._names()
        yield from self._step_events()
        yield from self._ops()
        yield from self._calls()
        yield from self._works()
        yield from self._annotations_on_device()

    @cached_property
    def _communicators(self) -> dict[int, tuple[int, ...]]:
        at = int(np.searchsorted(self.one.ranks, self.rank))
        return dict(sorted(self.one.communicators[at].items())) if len(self.one.communicators) else {}

    @cached_property
    def _begin_ns(self) -> int:
        """The host's time at which the first of the steps begins."""
        return self._host_bound(0)

    def _host_bound(self, number: int) -> int:
        """The host's time at a boundary of steps: when the launch before it returned."""
        row = int(self.bounds[number])
        return int(self.spans.end[self.one.program.records[row - 1]]) if row else 0

    def _names(self) -> Iterator[Event]:
        yield from process(self.pid, "python", "CPU", self.pid)
        yield from process(self.device_number, "python", f"GPU {self.device_number}", 5_000_000 + self.device_number)
        trace = self.one.program.trace
        names = {
            int(record["thread"]): str(trace.signature(int(record["signature"])).get("thread", ""))
            for record in trace.select(Kind.THREAD)
        }
        drawn = trace.records[self.positions.start : self.positions.stop]
        for number in np.unique(drawn["thread"]).tolist():
            tid = self.tid(number)
            yield from thread(self.pid, tid, f"thread {tid} ({names.get(number) or 'python'})", tid)
        for stream in np.unique(self._streams).tolist():
            yield from thread(self.device_number, stream, f"stream {stream} ", stream)

    def _step_events(self) -> Iterator[Event]:
        begin, end = self._begin_ns, self._host_bound(len(self.steps))
        yield span("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", begin, end, {"Op count": 0})
        for number, step in enumerate(self.steps):
            bounds = self._host_bound(number), self._host_bound(number + 1)
            arguments = {"External id": -step - 1, "Record function id": 0}
            yield span("user_annotation", f"ProfilerStep#{step}", self.pid, self.pid, *bounds, arguments)
            rows = np.arange(int(self.bounds[number]), int(self.bounds[number + 1]))
            yield from self._on_streams(f"ProfilerStep#{step}", rows, -step - 1)

    # ---- the host ----

    def _ops(self) -> Iterator[Event]:
        trace, spans = self.one.program.trace, self.spans
        records = trace.records
        forward: dict[int, tuple[int, int]] = {}  # sequence number -> thread and begin of the op that made it
        linked: set[int] = set()
        flows: list[Event] = []
        for position in self.positions:
            record = records[position]
            kind = int(record["kind"])
            if kind not in (Kind.OP, Kind.ANNOTATION) or spans.begin[position] < self._begin_ns:
                continue
            signature = trace.signature(int(record["signature"]))
            name = str(signature.get("op", ""))
            tid = self.tid(int(record["thread"]))
            begin, end = int(spans.begin[position]), int(spans.end[position])
            arguments: dict[str, Any] = {"External id": int(record["op"]), "Record function id": 0}
            sequence = int(record["value"]) >> 32
            if kind == Kind.OP:
                if sequence != 0xFFFFFFFF:
                    arguments |= {"Sequence number": sequence, "Fwd thread id": 0}
                    if name.rstrip("0123456789").endswith("Backward"):
                        if sequence in forward and sequence not in linked:
                            linked.add(sequence)
                            flows.append(flow("fwdbwd", sequence, self.pid, *forward[sequence], ends=False))
                            flows.append(flow("fwdbwd", sequence, self.pid, tid, begin, ends=True))
                    else:
                        forward.setdefault(sequence, (tid, begin))
                arguments |= input_arguments(signature.get("inputs", []))
            arguments["Ev Idx"] = position
            category = "cpu_op" if kind == Kind.OP else "user_annotation"
            yield span(category, name, self.pid, tid, begin, end, arguments)
        yield from flows

    def _calls(self) -> Iterator[Event]:
        trace, spans = self.one.program.trace, self.spans
        triton = self._triton
        for position in self.positions:
            record = trace.records[position]
            kind, flags = int(record["kind"]), int(record["flags"])
            if flags & Flag.FROM_GRAPH or (kind == Kind.COLLECTIVE and flags & Flag.GROUPED):
                continue
            signature = trace.signature(int(record["signature"]))
            if kind == Kind.SYNCHRONIZE:
                name: str | None = _WAITS.get(str(signature.get("wait", "")), "cudaDeviceSynchronize")
            elif kind == Kind.COLLECTIVE and "members" in signature:
                continue
            else:
                name = _CALLS.get(Kind(kind)) if kind in _CALLS else None
            if name is None or spans.begin[position] < self._begin_ns:
                continue
            category = "cuda_runtime"
            if kind == Kind.KERNEL and int(record["signature"]) in triton:
                category, name = "cuda_driver", "cuLaunchKernelEx"
            arguments = {"External id": int(record["op"]), "cbid": 0, "correlation": position}
            bounds = int(spans.begin[position]), int(spans.end[position])
            yield span(category, name, self.pid, self.tid(int(record["thread"])), *bounds, arguments)

    @cached_property
    def _triton(self) -> frozenset[int]:
        """Signatures of kernels that go through the driver: names that are not mangled."""
        trace = self.one.program.trace
        used = np.unique(trace.kernels()["signature"]).tolist()
        names = {number: str(trace.signature(number).get("kernel", "")) for number in used}
        return frozenset(number for number, name in names.items() if not name.startswith("_Z"))
            number for number in used if not str(trace.signature(number).get("kernel", "")).startswith("_Z")
        )

    # ---- the device ----

    @cached_property
    def _streams(self) -> npt.NDArray[np.int64]:
        """Of each row that is drawn."""
        positions = self.one.program.records[self.rows.start : self.rows.stop]
        return self.one.program.trace.records["stream"][positions].astype(np.int64) + DEFAULT_STREAM

    @cached_property
    def _kernel_names(self) -> dict[str, str]:
        trace = self.one.program.trace
        return kernel_names(
            str(trace.signature(number).get("kernel", ""))
            for number in np.unique(trace.kernels()["signature"]).tolist()
        )

    @cached_property
    def _launches(self) -> npt.NDArray[np.intp]:
        """Of each record that a graph launched: the record of the graph's launch; of others the record itself."""
        records = self.one.program.trace.records
        found = np.arange(len(records))
        from_graph = (records["flags"] & Flag.FROM_GRAPH) != 0
        graphs = np.where(records["kind"] == Kind.GRAPH_LAUNCH, found, 0)
        found[from_graph] = np.maximum.accumulate(graphs)[from_graph]
        return found

    def _works(self) -> Iterator[Event]:
        one, program = self.one, self.one.program
        records = program.trace.records
        start, end, arrival = (array[:, 0] for array in (one.start_ns, one.end_ns, one.arrival_ns))
        groups = self._groups()
        for row in self.rows:
            position = int(program.records[row])
            record = records[position]
            correlation = int(self._launches[position])
            stream = stream_number(int(record["stream"]))
            arguments: dict[str, Any] = {"External id": int(record["op"])}
            where = {"device": self.device_number, "context": _CONTEXT, "stream": stream, "correlation": correlation}
            begin, stop = int(start[row]), int(end[row])
            if program.call[row] >= 0:
                if row not in groups:
                    continue
                begin, stop = int(arrival[row]), max(int(end[other]) for other in groups[row])
                category, name, more = self._collective(row, record, len(groups[row]))
                arguments |= {"queued": 0, **where, **more}
            else:
                category, name, more = self._work(row, record, stop - begin)
                arguments |= ({"queued": 0} if category == "kernel" else {}) | where | more
            yield span(category, name, self.device_number, stream, begin, stop, arguments)
            launch = records[correlation]
            if self.spans.begin[correlation] >= self._begin_ns:
                tid = self.tid(int(launch["thread"]))
                yield flow("ac2g", correlation, self.pid, tid, int(self.spans.begin[correlation]), ends=False)
                yield flow("ac2g", correlation, self.device_number, stream, begin, ends=True)

    def _groups(self) -> dict[int, list[int]]:
        """Collectives of one NCCL group are one kernel: the row of the first -> rows of all."""
        program = self.one.program
        records = program.trace.records
        groups: dict[int, list[int]] = {}
        last: dict[int, int] = {}  # stream -> the first of its latest group
        for row in self.rows:
            if program.call[row] < 0:
                continue
            record = records[int(program.records[row])]
            stream = int(record["stream"])
            if int(record["flags"]) & Flag.GROUPED and stream in last:
                groups[last[stream]].append(row)
            else:
                last[stream] = row
                groups[row] = [row]
        return groups

    def _collective(self, row: int, record: np.void, together: int) -> tuple[str, str, Event]:
        program = self.one.program
        call = program.calls[int(program.call[row])]
        signature = program.trace.signature(int(record["signature"]))
        members = self._communicators.get(call.communicator, (self.rank,))
        group, description = _group_name(call.communicator), _group_description(call.communicator)
        arguments = collective_arguments(call, self.rank, members, group, description, int(record["value"]))
        started = int(self.one.start_ns[row, 0])
        arguments["Maya origin"] = f"network {self.result.timeline.network_origin}"
        arguments["Maya waited us"] = (started - int(self.one.arrival_ns[row, 0])) / 1000
        if together > 1:
            arguments["Maya grouped"] = together
        return "kernel", collective_kernel(call, str(signature.get("op", ""))), arguments

    def _work(self, row: int, record: np.void, ns: int) -> tuple[str, str, Event]:
        program = self.one.program
        kind = int(record["kind"])
        item, estimate = program.works[int(program.work[row])], program.estimates[int(program.work[row])]
        signature = program.trace.signature(int(record["signature"]))
        origin = {"Maya origin": estimate.origin.value}
        if kind in (Kind.MEMCPY, Kind.MEMSET):
            size = int(record["value"])
            rate = {"bytes": size, "memory bandwidth (GB/s)": round(size / ns, 6) if ns else 0.0}
            if kind == Kind.MEMSET:
                return "gpu_memset", "Memset (Device)", rate | origin
            return "gpu_memcpy", copy_name(signature), rate | origin
        if kind == Kind.LIBRARY:
            return "kernel", library_name(item), origin
        name = str(signature.get("kernel", ""))
        grid, block = signature.get("grid", [1, 1, 1]), signature.get("block", [1, 1, 1])
        blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        sms = self.result.timeline.device.sm_count
        shape = {
            "shared memory": signature.get("shared", 0),
            "blocks per SM": round(blocks / sms, 6),
            "warps per SM": round(blocks * -(-threads // _WARP) / sms, 6),
            "grid": grid,
            "block": block,
        }
        return "kernel", self._kernel_names.get(name, name), shape | origin

    def _annotations_on_device(self) -> Iterator[Event]:
        """What was launched in an annotation, from its first to its last work on each stream."""
        program = self.one.program
        records = program.trace.records
        threads = records["thread"][program.records]
        for position in self.positions:
            record = records[position]
            if int(record["kind"]) != Kind.ANNOTATION or self.spans.begin[position] < self._begin_ns:
                continue
            first, last = np.searchsorted(program.records, [self.spans.opened[position], position]).tolist()
            rows = np.arange(first, last)
            rows = rows[threads[rows] == record["thread"]]
            name = str(program.trace.signature(int(record["signature"])).get("op", ""))
            yield from self._on_streams(name, rows, int(record["op"]))

    def _on_streams(self, name: str, rows: npt.NDArray[np.intp], external: int) -> Iterator[Event]:
        program = self.one.program
        rows = rows[(rows >= self.rows.start) & (rows < self.rows.stop)]
        streams = program.trace.records["stream"][program.records[rows]]
        for stream in np.unique(streams).tolist():
            own = rows[streams == stream]
            begin, end = int(self.one.arrival_ns[own, 0].min()), int(self.one.end_ns[own, 0].max())
            tid = stream_number(stream)
            arguments = {"External id": external}
            yield span("gpu_user_annotation", name, self.device_number, tid, begin, end, arguments)


def device_properties(device: Device, number: int) -> Event:
    """As CUDA reports them."""
    return {
        "id": number,
        "name": device.name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": device.compute_capability[0],
        "computeMinor": device.compute_capability[1],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": device.max_threads_per_sm,
        "regsPerBlock": 65536,
        "warpSize": _WARP,
        "sharedMemPerBlock": device.shared_per_block_bytes,
        "numSms": device.sm_count,
        "regsPerMultiprocessor": device.registers_per_sm,
        "sharedMemPerBlockOptin": device.shared_per_block_optin_bytes,
        "sharedMemPerMultiprocessor": device.shared_per_sm_bytes,
    }


def _group_name(communicator: int) -> str:
    return str(communicator - 1)


def _group_description(communicator: int) -> str:
    return "default_pg" if communicator == 1 else "undefined"
