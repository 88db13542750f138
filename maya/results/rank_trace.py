"""A rank's timeline in the format of torch.profiler (Kineto): rank<N>_trace.json.gz, for Perfetto and HTA.

In: a `Result` whose timeline has a `RankDetail` of the rank. Out: a file with the last measured steps: ops and
annotations of the host's threads, CUDA calls, and on the device's streams kernels, copies and collectives, each linked
to its launch.

Arguments that a profile of a real run does not have begin with "Maya": "Maya origin" is the origin of a duration.
Streams are numbered from 7 on, as CUPTI does. As on a real GPU, the kernel of a collective begins when its rank
arrives, so it includes the wait for other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maya.devices import Device
from maya.results.kineto_device import DeviceEvents
from maya.results.kineto_host import call_events, op_events
from maya.results.kineto_window import MOST_STEPS, KinetoWindow, group_description, group_name
from maya.results.result import Result
from maya.results.trace_events import Event, process, span, thread, write_trace
from maya.trace import RecordKind


def write_rank_trace(result: Result, rank: int, folder: Path, most_steps: int = MOST_STEPS) -> Path:
    """Write the trace of a rank that the timeline has a `RankDetail` of."""
    window = KinetoWindow(result, rank, most_steps)
    path = folder / f"rank{rank}_trace.json.gz"
    write_trace(path, _head(window), _events(window), path.name.removesuffix(".gz"))
    return path


def _head(window: KinetoWindow) -> Event:
    timeline = window.result.timeline
    communicators = window.communicators
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            device_properties(timeline.device, number) for number in range(timeline.settings.ranks_per_node)
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": window.rank,
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


def _events(window: KinetoWindow) -> Iterator[Event]:
    on_device = DeviceEvents(window)
    yield from _names(window)
    yield from _steps(window)
    yield from op_events(window)
    yield from call_events(window)
    yield from on_device.kernels()
    yield from on_device.annotations()


def _names(window: KinetoWindow) -> Iterator[Event]:
    yield from process(window.pid, "python", "CPU", window.pid)
    yield from process(window.device_number, "python", f"GPU {window.device_number}", 5_000_000 + window.device_number)
    trace = window.group.rank_class.trace
    names = {
        int(record["thread"]): str(trace.signature(int(record["signature"])).get("thread", ""))
        for record in trace.select(RecordKind.THREAD)
    }
    for number, tid in window.threads.items():
        yield from thread(window.pid, tid, f"thread {tid} ({names.get(number) or 'python'})", tid)
    for stream in window.streams:
        yield from thread(window.device_number, stream, f"stream {stream} ", stream)


def _steps(window: KinetoWindow) -> Iterator[Event]:
    """Steps as torch.profiler marks them, on the host only: HTA ignores launches after the last mark begins, and a mark
    on the device begins later."""
    begin, end = window.begin_ns, window.host_bound(len(window.steps))
    yield span("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", begin, end, {"Op count": 0})
    for number, step in enumerate(window.steps):
        bounds = window.host_bound(number), window.host_bound(number + 1)
        arguments = {"External id": -step - 1, "Record function id": 0}
        yield span("user_annotation", f"ProfilerStep#{step}", window.pid, window.pid, *bounds, arguments)


def device_properties(device: Device, number: int) -> Event:
    """The device properties that CUDA reports."""
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
