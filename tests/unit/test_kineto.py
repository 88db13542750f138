"""Traces of ranks and of the cluster, as Perfetto and HTA need them."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.trace_writer import FROM_GRAPH, GROUPED
from helpers.training_traces import COMMUNICATION, TrainingWriter, tensor, timeline_of

from maya.replay.run_settings import HostCosts
from maya.results import Result, conclude
from maya.results.cluster_trace import drawn_ranks, write_cluster_trace
from maya.results.rank_trace import write_rank_trace
from maya.trace import RecordKind

US = 1000
MS = 1000 * US
HOST = HostCosts(
    op=5 * US,
    latency=3 * US,
    wake=6 * US,
    clock_read=0,
    calls={
        RecordKind.KERNEL: 4 * US,
        RecordKind.LIBRARY: 4 * US,
        RecordKind.COLLECTIVE: 10 * US,
        RecordKind.EVENT_RECORD: US,
    },
)
# Of conventions: what torch.profiler writes.
CATEGORIES = {
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "gpu_memcpy",
    "gpu_memset",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
    "Trace",
}

Event = dict[str, Any]


def job(folder: Path, steps: int = 4) -> Result:
    """Two ranks that train on real shapes, with copies, a straggler's wait and annotations."""
    ranks = [TrainingWriter(number) for number in range(2)]
    for rank in ranks:
        rank.thread(1, "python")
        rank.join(1, range(2))
        for step in range(steps):
            rank.copy("HtoD", 1 << 20)
            with rank.annotated("forward"), rank.opened("aten::linear", [tensor(64, 64), None, 3], sequence=step):
                rank.gemm()
                rank.elementwise()
            with rank.opened("AddmmBackward0", sequence=step):
                rank.gemm(layout="NN")
            for _ in range(rank.rank):
                rank.elementwise("_ZN2at6native5extraEv")
            rank.reduce(1, count=4096)
            rank.gemm()
            rank.join_streams()
            rank.add(RecordKind.MEMSET, {"memset": 0}, stream=0, value=512)
            rank.optimizer()
            rank.synchronise("stream", stream=0)
    return conclude(timeline_of(folder, ranks, HOST, network_ns=1500 * US, detailed=[0, 1]))


def read_trace(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def of_category(events: list[Event], *categories: str) -> list[Event]:
    return [event for event in events if event.get("cat") in categories and event["ph"] == "X"]


@pytest.fixture
def result(tmp_path: Path) -> Result:
    return job(tmp_path)


@pytest.fixture
def trace(result: Result, tmp_path: Path) -> dict[str, Any]:
    return read_trace(write_rank_trace(result, 0, tmp_path))


def test_the_head_has_the_keys_that_tools_need(trace: dict[str, Any], result: Result, tmp_path: Path) -> None:
    assert trace["schemaVersion"] == 1
    assert trace["displayTimeUnit"] == "ms"
    assert trace["distributedInfo"]["rank"] == 0
    assert trace["distributedInfo"]["world_size"] == 2
    assert trace["distributedInfo"]["pg_config"][0] == {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cuda:nccl",
        "pg_size": 2,
        "ranks": [0, 1],
    }
    assert trace["deviceProperties"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert trace["traceName"] == "rank0_trace.json"
    text = gzip.decompress(write_rank_trace(result, 1, tmp_path).read_bytes()).decode()
    found = re.search(r'"rank":\s+(\d+)', text)  # as HTA does
    assert found is not None
    assert found[1] == "1"


def test_categories_are_those_of_the_profiler(trace: dict[str, Any]) -> None:
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in spans} <= CATEGORIES
    assert all(event["dur"] >= 0 for event in spans)
    flows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    assert {event["cat"] for event in flows} == {"ac2g", "fwdbwd"}
    assert all(event.get("bp") == "e" for event in flows if event["ph"] == "f")


def test_every_kernel_has_its_launch(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    launches = {event["args"]["correlation"]: event for event in of_category(events, "cuda_runtime", "cuda_driver")}
    on_device = of_category(events, "kernel", "gpu_memcpy", "gpu_memset")
    assert on_device
    for event in on_device:
        launch = launches[event["args"]["correlation"]]
        assert launch["ts"] + launch["dur"] <= event["ts"]
        assert launch["args"]["External id"] == event["args"]["External id"]
        assert event["args"]["stream"] == event["tid"]
    starts = {event["id"] for event in events if event["ph"] == "s" and event["cat"] == "ac2g"}
    ends = {event["id"] for event in events if event["ph"] == "f" and event["cat"] == "ac2g"}
    assert starts == ends == {event["args"]["correlation"] for event in on_device}


def test_events_of_a_row_nest_or_do_not_overlap(trace: dict[str, Any]) -> None:
    """Perfetto cannot show slices of one row that overlap in part."""
    rows: dict[tuple[Any, Any], list[tuple[int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "gpu_user_annotation":
            begin = round(event["ts"] * 1000)
            rows[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    assert len(rows) >= 3
    for spans in rows.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
        open_until: list[int] = []
        for begin, end in spans:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_ops_are_around_their_calls(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    ops = {event["args"]["External id"]: event for event in of_category(events, "cpu_op")}
    for launch in of_category(events, "cuda_runtime"):
        op = ops.get(launch["args"]["External id"])
        if op is not None:
            assert op["ts"] <= launch["ts"]
            assert launch["ts"] + launch["dur"] <= op["ts"] + op["dur"] + 1e-6
    linear = next(event for event in ops.values() if event["name"] == "aten::linear")
    assert linear["args"]["Input Dims"] == [[64, 64], [], []]
    assert linear["args"]["Input type"] == ["float", "", "Scalar"]
    assert linear["args"]["Concrete Inputs"] == ["", "", "3"]
    forward = next(event for event in of_category(events, "user_annotation") if event["name"] == "forward")
    assert forward["ts"] <= linear["ts"]
    assert linear["ts"] + linear["dur"] <= forward["ts"] + forward["dur"]


def test_names_are_those_of_the_profiler(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    names = {event["name"] for event in of_category(events, "kernel")}
    assert any(name.startswith("at::native::vectorized_elementwise_kernel") for name in names)
    assert "maya::cublasGemmEx<bf16, TN>(m=64, n=64, k=64, batch=1)" in names
    assert {event["name"] for event in of_category(events, "gpu_memcpy")} == {"Memcpy HtoD (Pinned -> Device)"}
    assert {event["name"] for event in of_category(events, "gpu_memset")} == {"Memset (Device)"}
    calls = {event["name"] for event in of_category(events, "cuda_runtime")}
    assert {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize"} <= calls


def test_collectives_carry_the_metadata_of_nccl(trace: dict[str, Any]) -> None:
    kernels = [event for event in of_category(trace["traceEvents"], "kernel") if event["name"].startswith("nccl")]
    assert kernels
    first = kernels[0]
    assert re.match(r"^nccl.*Kernel", first["name"])  # as HTA does
    assert first["name"] == "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    wanted = {
        "Collective name": "allreduce",
        "In msg nelems": 4096,
        "Out msg nelems": 4096,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    assert wanted.items() <= first["args"].items()
    # Rank 0 comes a kernel earlier than rank 1 and waits: that is part of its kernel, as on a GPU.
    assert first["args"]["Maya waited us"] == pytest.approx(1000, abs=20)
    assert first["dur"] == pytest.approx(1500 + first["args"]["Maya waited us"])


def test_steps_are_marked(trace: dict[str, Any], result: Result) -> None:
    events = trace["traceEvents"]
    steps = [event for event in of_category(events, "user_annotation") if event["name"].startswith("ProfilerStep#")]
    assert [event["name"] for event in steps] == [f"ProfilerStep#{step}" for step in result.steps.measured]
    for one, other in pairwise(steps):
        assert one["ts"] + one["dur"] == pytest.approx(other["ts"])
    gpu = [event for event in of_category(events, "gpu_user_annotation") if event["name"] == "forward"]
    assert len(gpu) == len(steps)
    assert all("stream" not in event["args"] for event in gpu)  # HTA would take them for kernels


def test_sends_of_a_group_are_one_kernel(tmp_path: Path) -> None:
    ranks = [TrainingWriter(0), TrainingWriter(1)]
    for rank in ranks:
        other = 1 - rank.rank
        rank.join(1, range(2))
        for _ in range(3):
            rank.batch()
            rank.send(1, to=other, stream=COMMUNICATION)
            rank.receive(1, source=other, stream=COMMUNICATION, flags=GROUPED)
            rank.join_streams()
            rank.optimizer()
    result = conclude(timeline_of(tmp_path, ranks, HOST, network_ns=MS, detailed=[0]))
    events = read_trace(write_rank_trace(result, 0, tmp_path))["traceEvents"]
    kernels = [event for event in of_category(events, "kernel") if event["name"].startswith("nccl")]
    assert len(kernels) == len(result.steps.measured)
    assert kernels[0]["name"].startswith("ncclDevKernel_SendRecv")
    assert kernels[0]["args"]["Maya grouped"] == 2
    assert (kernels[0]["args"]["Src Rank"], kernels[0]["args"]["Dst Rank"]) == (0, 1)


def test_kernels_of_a_graph_belong_to_its_launch(tmp_path: Path) -> None:
    rank = TrainingWriter(0)
    for _ in range(3):
        rank.add(RecordKind.GRAPH_LAUNCH, value=1)
        for _ in range(3):
            rank.kernel("in the graph", flags=FROM_GRAPH)
        rank.batch()
        rank.optimizer()
    result = conclude(timeline_of(tmp_path, [rank], HOST, detailed=[0]))
    events = read_trace(write_rank_trace(result, 0, tmp_path))["traceEvents"]
    launches = [event for event in of_category(events, "cuda_runtime") if event["name"] == "cudaGraphLaunch"]
    launched = [event for event in of_category(events, "kernel") if event["name"] == "in the graph"]
    assert [event["args"]["correlation"] for event in launched] == [
        event["args"]["correlation"] for event in launches for _ in range(3)
    ]


def test_the_same_run_makes_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        result = job(folder)
        files.append(
            [write_rank_trace(result, 1, folder).read_bytes(), write_cluster_trace(result, folder).read_bytes()]
        )
    assert files[0] == files[1]


def test_nothing_is_left_of_a_file_that_cannot_be_written(result: Result, tmp_path: Path) -> None:
    (tmp_path / "rank0_trace.json.gz").mkdir()
    with pytest.raises(OSError):
        write_rank_trace(result, 0, tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


def test_one_file_shows_the_cluster(result: Result, tmp_path: Path) -> None:
    events = read_trace(write_cluster_trace(result, tmp_path))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0 (node 0)", "rank 1 (node 0)"}
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans if event["pid"] == 0} >= {"step 3", "compute", "ncclAllReduce", "wait"}
    assert "wait" not in {event["name"] for event in spans if event["pid"] == 1}  # the straggler


def test_a_large_cluster_makes_a_small_file(tmp_path: Path) -> None:
    ranks = [TrainingWriter(number) for number in range(100)]
    for rank in ranks:
        rank.join(1, range(100))
        for _ in range(3):
            rank.batch()
            for _ in range(rank.rank):  # every rank is a class of its own
                rank.elementwise()
            rank.reduce(1)
            rank.join_streams()
            rank.optimizer()
    result = conclude(timeline_of(tmp_path, ranks, HOST))
    drawn = drawn_ranks(result)
    assert len(drawn) == 64
    assert {result.breakdown.slowest.rank, result.breakdown.median_rank} <= set(drawn)
    assert write_cluster_trace(result, tmp_path).stat().st_size < 100_000
