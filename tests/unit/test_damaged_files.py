"""Damaged files of a run and of a user: a reader reads them or refuses them with one message, a ValueError.

A thousand seeded mutants of every kind of file. The slow test replays thousands of damaged traces.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.mutations import damaged_bytes, damaged_json, save_damaged_trace
from helpers.training_traces import COMMUNICATION, TrainingWriter

import maya
from maya.devices import load_device
from maya.estimators.features.kineto_trace import read_profile
from maya.estimators.training.measurements_file import REQUIRED
from maya.estimators.training.measurements_file import read_measurements as read_kernel_times
from maya.hosts.costs import REFERENCE, host_path, load_host
from maya.launcher.attempt import Exit
from maya.launcher.failure import failure_block, failures_of, root_cause
from maya.replay.mesh_blocks import FILE as SURVEY
from maya.replay.mesh_blocks import MeshBlock, SurveyResult
from maya.replay.represented_ranks import FILE as GROUPS
from maya.replay.represented_ranks import GroupOfCommunicator, RepresentedJob
from maya.replay.run_settings import FILE as SETTINGS
from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.results import conclude
from maya.results.prediction_json import prediction_json
from maya.results.terminal_text import lines_of
from maya.trace import RecordKind, Trace, TraceError, read
from maya.trace.listing import trace_lines
from netmodel.calibration.measurements import read_measurements
from netmodel.cluster import cluster_path, load_cluster

MUTANTS = 1000
SETTINGS_OF_A_RUN = RunSettings(
    world_size=2,
    ranks_per_node=2,
    gpu="h100",
    cluster="dgx-h100",
    host=load_host(REFERENCE, load_device("h100")),
    nccl={"NCCL_ALGO": "Ring"},
    changes={"host.op": "5us"},
    injected=("kill:rank=1,call=3",),
    options={"steps_from": None, "tokens_per_step": 100},
)


def read_or_refused(read_it: Callable[[], object]) -> bool:
    """Whether a reader accepts its file; any other exception than a ValueError fails the test."""
    try:
        read_it()
    except ValueError:
        return False
    return True


def try_mutants(path: Path, original: str, read_it: Callable[[Path], object], *, json_file: bool = False) -> None:
    """Give a reader a thousand mutants; some must be refused."""
    assert read_or_refused(lambda: read_it(path))
    refused = 0
    for seed in range(MUTANTS):
        draw = Random(seed)
        text = damaged_json(draw, original).encode() if json_file else damaged_bytes(draw, original.encode())
        path.write_bytes(text)
        refused += not read_or_refused(lambda: read_it(path))
    assert refused


# ---- traces ----


def training_rank(rank: int) -> TrainingWriter:
    """Three steps with everything that a trace can have."""
    made = TrainingWriter(rank)
    made.join(1, range(2))
    made.create_stream(7, blocking=True)
    made.thread(2, "pt_autograd_0")
    made.thread(3, "loader")
    for _ in range(3):
        block = made.allocate(4096, segment=1 << 21)
        made.batch(layers=2)
        with made.opened("aten::copy_", [None, [1, 2]]):
            made.copy("HtoD", 4096, thread=2, ops=3)
        made.reduce(1)
        made.send(1, 1, stream=7) if rank == 0 else made.receive(1, 0, stream=7)
        made.join_streams()
        made.optimizer(kernels=2)
        made.synchronise("device")
        made.synchronise("stream", stream=COMMUNICATION)
        made.add(RecordKind.PLACEHOLDER_READ, {"read": "aten::item", "at": "train.py:7", "bytes": 4}, value=4)
        made.add(RecordKind.CHOICE, {"choice": "aten::topk", "at": "train.py:9", "alternatives": 8}, value=2)
        made.add(RecordKind.HOST_DELAY, value=1000)
        made.add(RecordKind.MEMSET, {"memset": 0}, value=64)
        made.release(block)
        made.zero_grad()
    return made


@pytest.fixture
def traces(tmp_path: Path) -> dict[int, Trace]:
    SETTINGS_OF_A_RUN.save(tmp_path)
    return {rank: read(training_rank(rank).save(tmp_path)) for rank in range(2)}


def replay(folder: Path) -> None:
    result = conclude(simulate(folder))
    lines_of(result)
    json.dumps(prediction_json(result))


def show(path: Path) -> None:
    assert list(trace_lines(read(path)))
    assert list(trace_lines(read(path), summary=True, demangle=False))


def test_a_good_trace_passes(tmp_path: Path, traces: dict[int, Trace]) -> None:
    replay(tmp_path)
    show(tmp_path / "rank0.trace")


def test_damaged_traces_are_refused_or_shown(tmp_path: Path, traces: dict[int, Trace]) -> None:
    refused = 0
    for seed in range(MUTANTS):
        save_damaged_trace(Random(seed), traces[0], tmp_path)
        refused += not read_or_refused(lambda: read(traces[0].path))
        if seed % 10 == 0:
            read_or_refused(lambda: show(traces[0].path))
    assert refused


def test_bytes_of_a_trace_are_damaged(tmp_path: Path, traces: dict[int, Trace]) -> None:
    path = traces[0].path
    original = path.read_bytes()
    for seed in range(MUTANTS):
        path.write_bytes(damaged_bytes(Random(seed), original))
        read_or_refused(lambda: read(path))


def replay_mutants(folder: Path, traces: dict[int, Trace], seeds: range) -> None:
    for seed in seeds:
        draw = Random(seed)
        save_damaged_trace(draw, traces[0], folder)
        if draw.random() < 0.3:
            save_damaged_trace(draw, traces[1], folder)
        read_or_refused(lambda: replay(folder))


def test_damaged_traces_are_refused_or_replayed(tmp_path: Path, traces: dict[int, Trace]) -> None:
    replay_mutants(tmp_path, traces, range(100))


@pytest.mark.slow
def test_thousands_of_damaged_traces_are_refused_or_replayed(tmp_path: Path, traces: dict[int, Trace]) -> None:
    replay_mutants(tmp_path, traces, range(1000, 6000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signature": 99999}, r"record 5 refers to a string that is not among the \d+: 99999"),
        ({"kind": 77}, "record 5 is of an unknown kind: 77"),
        ({"thread": 0}, "record 5 is of no thread"),
        ({"host_ns": 2**63}, "record 5 has an impossible time"),
    ],
)
def test_the_message_names_file_and_record(
    tmp_path: Path, traces: dict[int, Trace], change: dict[str, int], message: str
) -> None:
    writer = training_rank(0)
    records = [{name: int(record[name]) for name in writer.columns} for record in traces[0].records]
    records[5] |= change
    writer.replace(traces[0].strings, records)
    path = writer.save(tmp_path)
    with pytest.raises(TraceError, match=rf"rank0.trace is damaged: {message}.*Record it again"):
        read(path)


def test_the_message_names_the_signature(tmp_path: Path, traces: dict[int, Trace]) -> None:
    writer = training_rank(0)
    writer.add(RecordKind.KERNEL, {"kernel": "k", "grid": [1, 1], "block": [1, 1, 1], "shared": 0})
    with pytest.raises(TraceError, match=r"signature of record kind kernel: grid is no list of 3 whole numbers: '\{"):
        read(writer.save(tmp_path))


# ---- the other files of a run ----


def test_run_json(tmp_path: Path) -> None:
    SETTINGS_OF_A_RUN.save(tmp_path)
    path = tmp_path / SETTINGS
    try_mutants(path, path.read_text(), lambda _: RunSettings.load(tmp_path).with_host(), json_file=True)


def test_process_groups_and_survey(tmp_path: Path) -> None:
    world = tuple(range(8))
    groups = [world, (0, 1, 2, 3), (4, 5, 6, 7)]
    origins = {(groups[1], 0): GroupOfCommunicator(1), ((0, 1), 0): GroupOfCommunicator(1, (0, 1))}
    RepresentedJob(8, (0, 4), groups, origins, ["key"], ["default_pg"]).save(tmp_path)
    blocks = [(MeshBlock((0, 0), (0, 3)), 0), (MeshBlock((1, 0), (1, 3)), 4)]
    SurveyResult((2, 4), blocks, (3,), (0, 3, 4), 2).save(tmp_path)

    def load(_: Path) -> None:
        job = RepresentedJob.load(tmp_path)
        if job is not None:
            job.lines([world])
            job.representatives({0: b"a", 4: b"b"})

    for name in (GROUPS, SURVEY):
        path = tmp_path / name
        original = path.read_text()
        try_mutants(path, original, load, json_file=True)
        path.write_text(original)


HANG = {
    "kind": "deadlock",
    "ranks": {"all": 2, "stuck": [0, 1]},
    "nodes": {"node-a": [0], "node-b": [1]},
    "hints": ["a hint"],
    "odd": [],
    "divergence": None,
    "shift": None,
    "seconds": 3.0,
    "problem": None,
    "groups": [
        {
            "ranks": [0], "state": "waits", "doing": "in all_reduce", "called_at": None, "stands_at": None,
            "in_backward": False, "queued": [], "missing": [1], "stack": [], "call": None, "callers": [],
            "elsewhere": 0,
        }
    ],
}  # fmt: skip


def test_hang_json_and_summary_json(tmp_path: Path) -> None:
    SETTINGS_OF_A_RUN.save(tmp_path)
    hang = tmp_path / "hang.json"
    hang.write_text(json.dumps(HANG))
    try_mutants(hang, hang.read_text(), lambda _: maya.load(tmp_path).hang, json_file=True)
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"exit_code": 0, "assumptions": [{"text": "a"}], "prediction": {"version": 1}}))

    def read_summary(_: Path) -> None:
        run = maya.load(tmp_path)
        assert run.exit_code in (None, run.exit_code)
        assert isinstance(run.assumptions, tuple)

    try_mutants(summary, summary.read_text(), read_summary, json_file=True)


def test_error_files_of_ranks(tmp_path: Path) -> None:
    """torch's own file, which a rank of any user's script may have written; what is wrong counts as missing."""
    path = tmp_path / "error.json"
    details = {"py_callstack": "Traceback", "timestamp": "1700000000"}
    original = json.dumps({"message": {"message": "failed", "extraInfo": details}})
    for seed in range(MUTANTS):
        path.write_text(damaged_json(Random(seed), original))
        failures = failures_of([Exit(0, 1, 1, 0.0)], 1, lambda rank: path)
        assert failure_block("train.py", failures, root_cause(failures))


# ---- files of a user ----


def load_own_cluster(path: Path) -> None:
    load_cluster(str(path))


@pytest.mark.parametrize("name", ["dgx-h100"])
def test_cluster_files(tmp_path: Path, name: str) -> None:
    original = cluster_path(name).read_text(encoding="utf-8")
    path = tmp_path / "cluster.toml"
    path.write_text(original, encoding="utf-8")
    try_mutants(path, original, load_own_cluster)


def test_gpu_files(tmp_path: Path) -> None:
    original = (Path(maya.__file__).parent / "devices" / "h100.toml").read_text(encoding="utf-8")
    path = tmp_path / "gpu.toml"
    path.write_text(original, encoding="utf-8")
    try_mutants(path, original, lambda path: load_device(str(path)))


def test_host_files(tmp_path: Path) -> None:
    original = host_path(REFERENCE).read_text(encoding="utf-8")
    path = tmp_path / "host.toml"
    path.write_text(original, encoding="utf-8")
    device = load_device("h100")
    try_mutants(path, original, lambda path: load_host(str(path), device))


NCCL_TESTS = """
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  node1 device  0 [0x1a] NVIDIA H100
#  Rank  1 Group  0 Pid  1 on  node1 device  1 [0x1b] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    12.34    0.08    0.08      0    12.10    0.08    0.08      0
     1048576        262144     float     sum      -1    45.67   22.96   22.96      0    45.01   23.30   23.30      0
"""
CSV = """op,nranks,nodes,size_bytes,time_us,dtype
all_reduce,8,1,1024,12.5,float
all_gather,16,2,1048576,80.25,bfloat16
"""


@pytest.mark.parametrize("original", [NCCL_TESTS, CSV], ids=["nccl-tests", "csv"])
def test_measurements_of_collectives(tmp_path: Path, original: str) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(original)
    try_mutants(path, original, lambda path: read_measurements(path))


def test_measurements_of_kernels(tmp_path: Path) -> None:
    values = {"kind": "gemm", "shape": "m=64 n=64 k=64", "time_us": "12", "dtype": "bf16", "variant": "TN"}
    header = ",".join(REQUIRED)
    original = f"{header}\n" + ",".join(values.get(name, "100") for name in REQUIRED) + "\n"
    path = tmp_path / "kernels.csv"
    path.write_text(original)
    try_mutants(path, original, lambda path: read_kernel_times(path))


def test_profiles(tmp_path: Path) -> None:
    kernel = {
        "ph": "X", "cat": "kernel", "name": "gemm", "ts": 10.0, "dur": 5.0,
        "args": {"grid": [1, 1, 1], "block": [128, 1, 1], "External id": 3, "stream": 7},
    }  # fmt: skip
    op = {
        "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 5.0,
        "args": {"External id": 3, "Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]},
    }  # fmt: skip
    document: dict[str, Any] = {"traceEvents": [kernel, op], "deviceProperties": [{"name": "NVIDIA H100"}]}
    original = json.dumps(document)
    path = tmp_path / "profile.json"
    path.write_text(original)
    try_mutants(path, original, lambda path: read_profile(path), json_file=True)
    packed = tmp_path / "profile.json.gz"
    for seed in range(100):
        packed.write_bytes(damaged_bytes(Random(seed), gzip.compress(original.encode())))
        read_or_refused(lambda: read_profile(packed))
