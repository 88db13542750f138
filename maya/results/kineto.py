"""A rank's timeline as torch.profiler would have written it: rank<N>_trace.json.gz, for Perfetto and HTA.

In: a `Result` whose timeline has the rank in detail. Out: a file with the last measured steps: ops and annotations of
the host's threads, calls of CUDA, and on the device's streams kernels, copies and collectives, each with its launch.

What differs from a profile of a real run is said in the arguments: "Maya origin" is where a duration comes from. The
rank's threads and streams are numbered as its trace does, from 7 on for streams, as CUDA does. As on a real GPU, a
collective's kernel is there from when its rank comes to it, so that waiting for others is part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maya.devices import Device
from maya.results.drawing import MOST_STEPS, Drawing, group_description, group_name
from maya.results.kineto_device import DeviceEvents
from maya.results.kineto_host import call_events, op_events
from maya.results.result import Result
from maya.results.trace_file import Event, process, span, thread, write_trace
from maya.trace import RecordKind


def write_rank_trace(result: Result, rank: int, folder: Path, most_steps: int = MOST_STEPS) -> Path:
    """Write the trace of a rank that the timeline has in detail."""
    drawing = Drawing(result, rank, most_steps)
    path = folder / f"rank{rank}_trace.json.gz"
    write_trace(path, _head(drawing), _events(drawing), path.name.removesuffix(".gz"))
    return path


def _head(drawing: Drawing) -> Event:
    timeline = drawing.result.timeline
    communicators = drawing.communicators
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            device_properties(timeline.device, number) for number in range(timeline.settings.ranks_per_node)
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": drawing.rank,
            "world_size": timeline.world_size,
            "pg_count": len(communicators),
            "pg_config": [
                {
                    "pg_name": group_name(number),
                    "pg_desc": group_description(number),
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


def _events(drawing: Drawing) -> Iterator[Event]:
    on_device = DeviceEvents(drawing)
    yield from _names(drawing)
    yield from _steps(drawing)
    yield from op_events(drawing)
    yield from call_events(drawing)
    yield from on_device.works()
    yield from on_device.annotations()


def _names(drawing: Drawing) -> Iterator[Event]:
    yield from process(drawing.pid, "python", "CPU", drawing.pid)
    yield from process(
        drawing.device_number, "python", f"GPU {drawing.device_number}", 5_000_000 + drawing.device_number
    )
    trace = drawing.one.rank_class.trace
    names = {
        int(record["thread"]): str(trace.signature(int(record["signature"])).get("thread", ""))
        for record in trace.select(RecordKind.THREAD)
    }
    for number, tid in drawing.threads.items():
        yield from thread(drawing.pid, tid, f"thread {tid} ({names.get(number) or 'python'})", tid)
    for stream in drawing.streams:
        yield from thread(drawing.device_number, stream, f"stream {stream} ", stream)


def _steps(drawing: Drawing) -> Iterator[Event]:
    """Steps as torch.profiler marks them, on the host only: HTA leaves out what is launched after the last mark begins,
    and a mark on the device begins later."""
    begin, end = drawing.begin_ns, drawing.host_bound(len(drawing.steps))
    yield span("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", begin, end, {"Op count": 0})
    for number, step in enumerate(drawing.steps):
        bounds = drawing.host_bound(number), drawing.host_bound(number + 1)
        arguments = {"External id": -step - 1, "Record function id": 0}
        yield span("user_annotation", f"ProfilerStep#{step}", drawing.pid, drawing.pid, *bounds, arguments)


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
        "warpSize": 32,
        "sharedMemPerBlock": device.shared_per_block_bytes,
        "numSms": device.sm_count,
        "regsPerMultiprocessor": device.registers_per_sm,
        "sharedMemPerBlockOptin": device.shared_per_block_optin_bytes,
        "sharedMemPerMultiprocessor": device.shared_per_sm_bytes,
    }
