"""The recorder and the trace: what a program records comes back from the file, whatever becomes of the program.

`trace_driver.c` is that program: the real recorder, with stand-ins for settings and messages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maya.trace import Flag, RecordKind, Trace, TraceError, count_records, read
from maya.trace import format as trace_format
from maya.trace.columns import BlockRun
from maya.trace.flops import gemm_flops
from maya.trace.listing import parse_kinds, trace_lines
from rank_runtime.build.headers import write_headers
from rank_runtime.build.sources import Sources

DEVICE = Path(__file__).parents[2] / "rank_runtime" / "shim" / "device"
STRICT = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", str(DEVICE)]
RECORDS_PER_BLOCK = 4096

Driver = Callable[..., "subprocess.CompletedProcess[str]"]


def compile_c(*arguments: str | Path) -> None:
    subprocess.run([os.environ.get("CC", "gcc"), *STRICT, *map(str, arguments)], check=True)


@pytest.fixture(scope="session")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    program = folder / "driver"
    write_headers(folder, Sources())
    own = [DEVICE / "intern.c", DEVICE / "host_time.c", *sorted(DEVICE.glob("recorder*.c"))]
    sources = [Path(__file__).with_name("trace_driver.c"), *own]
    compile_c("-I", folder, "-pthread", "-Wl,--wrap=malloc,--wrap=calloc,--wrap=writev", "-o", program, *sources)
    return program


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank3.trace"


@pytest.fixture
def driver(driver_program: Path, path: Path) -> Driver:
    """Runs the driver, which records to `path`."""

    def run(*arguments: object, expect: int = 0, trace: Path = path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TRACE": str(trace), **more}
        command = [str(driver_program), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == expect, done.stderr
        return done

    return run


def block_offsets(data: bytes) -> list[int]:
    """Where the blocks of a trace begin, and where the last one ends."""
    offsets = [trace_format.HEADER.size]
    while offsets[-1] < len(data):
        size = trace_format.BLOCK_HEADER.unpack_from(data, offsets[-1])[3]
        offsets.append(offsets[-1] + trace_format.BLOCK_HEADER.size + size)
    return offsets


# ---- what is recorded is read ----


def test_the_header_describes_the_device(driver: Driver, path: Path) -> None:
    driver("launch", 1)
    header = read(path).header
    assert (header.version, header.rank, header.gpu) == (trace_format.VERSION, 3, "Test GPU")
    assert header.torch_version == header.cuda_version == ""
    assert abs(header.started_ns / 1e9 - path.stat().st_mtime) < 60


def test_a_million_launches_from_two_threads(driver: Driver, path: Path) -> None:
    each = 500_000
    assert driver("two-threads", each).stdout == ""
    trace = read(path)
    assert trace.complete
    assert trace.problem == ""
    kernels = trace.kernels()
    assert len(kernels) == 2 * each
    assert len(trace.ops) == 2 * each // 10
    assert (np.diff(kernels["host_ns"].astype(np.int64)) >= 0).all()
    for stream in (1, 2):
        mine = kernels[kernels["stream"] == stream]
        assert (mine["value"] == np.arange(each)).all(), "lost, doubled or out of order"
        assert len(np.unique(mine["thread"])) == 1
        assert (np.diff(mine["op"].astype(np.int64)) > 0).all()
        names = [trace.signature(number)["kernel"] for number in mine["signature"][:300]]
        assert names == [f"_ZN2at6native6kernelILi{i}EEEvPf" for i in range(300)]
        assert (mine["signature"][300:] == mine["signature"][:-300]).all(), "a string has two numbers"
    assert len(trace.strings) == len(set(trace.strings)) == 302
    (second,) = trace.select(RecordKind.THREAD)
    assert (int(second["thread"]), trace.signature(int(second["signature"]))) == (2, {"thread": "driver"})
    assert len(np.unique(kernels["op"])) == 2 * each
    assert count_records(trace).ops == 4 * each
    assert path.stat().st_size / len(kernels) < 20


def test_ops_are_recorded_with_times_and_inputs(driver: Driver, path: Path) -> None:
    driver("ops")
    trace = read(path)
    step, mm = trace.ops
    assert (step["op"], step["name"], step["kind"], step["sequence"]) == (
        1,
        "ProfilerStep#1",
        RecordKind.ANNOTATION,
        -1,
    )
    assert (step["start_ns"], step["duration_ns"], step["inputs"]) == (50, 6_000_000_000, [])
    assert (mm["op"], mm["parent"], mm["name"], mm["sequence"]) == (2, 1, "aten::mm", 17)
    assert (mm["start_ns"], mm["duration_ns"]) == (100, 2500)
    assert mm["inputs"][0] == {"shape": [2, 3], "dtype": "bfloat16", "strides": [1, 2]}
    (gemm,) = trace.select(RecordKind.LIBRARY)
    assert trace.op_of(gemm) == mm
    (kernel,) = trace.kernels()
    assert trace.op_of(kernel) is None
    assert kernel["flags"] == Flag.FROM_GRAPH
    assert gemm_flops(trace).tolist() == [2.0 * 2 * 4 * 3 * 5]


def test_the_summary_counts_records(driver: Driver, path: Path) -> None:
    driver("ops")
    summary = count_records(read(path))
    assert summary.counts[RecordKind.OP] == summary.launches == summary.library_calls == 1
    assert summary.bytes_copied == {"DtoH": 4096}
    (placeholder,) = summary.placeholder_reads
    assert (placeholder.read, placeholder.at, placeholder.times, placeholder.bytes) == (
        "aten::_local_scalar_dense",
        "train.py:33",
        1,
        4,
    )
    assert (summary.ops, summary.threads, summary.streams) == (2, 1, 2)


# ---- the code of columns and records, for all values ----

UNSIGNED = st.integers(0, 2**64 - 1)
SMALL_OR_ANY = st.one_of(st.integers(0, 3), UNSIGNED)


@pytest.fixture(scope="session")
def encode(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[int]], npt.NDArray[np.uint8]]:
    """The recorder's own encoding of one column."""
    folder = tmp_path_factory.mktemp("column")
    (folder / "column.c").write_text(
        '#include "recorder_column.h"\n'
        "uint32_t encode(const uint64_t *values, int count, uint8_t **bytes) {\n"
        "    static maya_column column;\n"
        "    column.length = 0;\n"
        "    uint8_t *to = maya_column_open(&column);\n"
        "    for (int i = 0; i < count; i++) to = maya_column_append(to, values[i], i ? values[i - 1] : 0);\n"
        "    maya_column_close(&column, to);\n"
        "    *bytes = column.bytes;\n"
        "    return maya_column_significant(&column);\n"
        "}\n"
    )
    compile_c("-shared", "-fPIC", "-o", folder / "column.so", folder / "column.c")
    function = ctypes.CDLL(str(folder / "column.so")).encode

    def encoded(values: list[int]) -> npt.NDArray[np.uint8]:
        start = ctypes.POINTER(ctypes.c_uint8)()
        length = function((ctypes.c_uint64 * len(values))(*values), len(values), ctypes.byref(start))
        return np.frombuffer(ctypes.string_at(start, length), dtype=np.uint8)

    return encoded


@given(columns=st.lists(st.lists(SMALL_OR_ANY, min_size=1, max_size=40), min_size=1, max_size=5))
def test_columns_round_trip(encode: Callable[[list[int]], npt.NDArray[np.uint8]], columns: list[list[int]]) -> None:
    run = BlockRun([len(column) for column in columns])
    values = run.values([encode(column) for column in columns])
    assert values.tolist() == [value for column in columns for value in column]


GIVEN_RECORD = struct.Struct("<QIIIIBB")
WORD = st.integers(0, 2**32 - 1)
NUMBER = st.one_of(st.integers(0, 9), WORD)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(
        st.tuples(SMALL_OR_ANY, NUMBER, NUMBER, NUMBER, NUMBER, st.integers(0, 255), st.integers(0, 255)),
        min_size=1,
        max_size=30,
    ),
    times=st.sampled_from([1, 200]),  # 200: also more than one block
)
def test_records_round_trip(driver_program: Path, path: Path, records: list[tuple[int, ...]], times: int) -> None:
    subprocess.run(
        [driver_program, "stdin"],
        input=b"".join(GIVEN_RECORD.pack(*record) for record in records) * times,
        env={**os.environ, "TRACE": str(path)},
        timeout=60,
        check=True,
    )
    trace = read(path, checked=False)  # any numbers
    assert trace.complete
    fields = ("value", "stream", "signature", "op", "ops", "kind", "flags")
    columns = [trace.records[field].tolist() for field in fields]
    assert list(zip(*columns, strict=True)) == records * times
    assert set(trace.records["thread"].tolist()) == {1}


# ---- when the program or the disk fails ----


def test_a_trace_cut_anywhere_in_its_last_blocks_is_read_up_to_there(driver: Driver, path: Path) -> None:
    driver("launch", RECORDS_PER_BLOCK + 10)
    data = path.read_bytes()
    *_, full_block_end, last_records_end, end = block_offsets(data)
    assert end == len(data)
    whole = read(path)
    assert whole.complete
    for length in range(full_block_end, len(data)):
        path.write_bytes(data[:length])
        trace = read(path)
        assert not trace.complete
        expected = whole.records[: RECORDS_PER_BLOCK if length < last_records_end else None]
        assert (trace.records == expected).all()
        at_a_boundary = length in (full_block_end, last_records_end)
        assert ("crashed or is still running" if at_a_boundary else "cut short") in trace.problem


def test_no_damage_goes_unnoticed(driver: Driver, path: Path) -> None:
    driver("launch", RECORDS_PER_BLOCK + 10)
    data = path.read_bytes()
    *_, block, after, _ = block_offsets(data)
    for at in range(block, after):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        trace = read(path)
        assert len(trace.records) == RECORDS_PER_BLOCK
        assert f"at byte {block}" in trace.problem


def assert_launches(trace: Trace, count: int) -> None:
    assert trace.records["value"].tolist() == list(range(count))
    assert all(trace.signature(number)["grid"] for number in np.unique(trace.records["signature"]))


def test_a_killed_program_leaves_a_readable_trace(driver: Driver, path: Path) -> None:
    driver("killed", 10_000, expect=-signal.SIGKILL)
    trace = read(path)
    assert not trace.complete
    assert "crashed or is still running" in trace.problem
    assert_launches(trace, 2 * RECORDS_PER_BLOCK)


def test_a_flushed_trace_survives_a_kill(driver: Driver, path: Path) -> None:
    driver("flush", 10_000, expect=-signal.SIGKILL)
    assert_launches(read(path), 10_000)


def test_a_slow_program_is_written_every_second(driver: Driver, path: Path) -> None:
    driver("slow", expect=-signal.SIGKILL)
    assert len(read(path).records) == 2


def test_a_program_that_exits_without_handlers_leaves_its_trace(driver: Driver, path: Path) -> None:
    driver("_exit", 10_000)
    trace = read(path)
    assert trace.complete
    assert_launches(trace, 10_000)


def test_a_full_disk_ends_the_trace_and_not_the_program(driver: Driver, path: Path) -> None:
    done = driver("limited", 100_000, 100_000)
    assert done.stdout == "the program went on\n"
    (message,) = done.stderr.splitlines()
    assert str(path) in message
    assert os.strerror(errno.EFBIG) in message
    trace = read(path)
    assert not trace.complete
    assert "the limit on file sizes was reached" in trace.problem
    assert "ulimit -f" in trace.remedy
    assert len(trace.records) >= RECORDS_PER_BLOCK
    assert_launches(Trace(path, trace.header, trace.records[:300], trace.strings, False, ""), 300)


def test_a_disk_that_is_full_from_the_first_byte_is_reported(driver: Driver) -> None:
    done = driver("launch", 10_000, trace=Path("/dev/full"))
    (message,) = done.stderr.splitlines()
    assert "/dev/full" in message
    assert os.strerror(errno.ENOSPC) in message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENOSPC, "the disk was full"),
        (errno.EDQUOT, "the disk was full"),
        (errno.EIO, "it could not be written"),
    ],
)
def test_a_write_that_stops_halfway_leaves_whole_blocks_and_the_reason(
    driver: Driver, path: Path, error: int, said: str
) -> None:
    done = driver("broken-disk", error)
    assert done.stdout == "the program went on\n"
    assert os.strerror(error) in done.stderr
    trace = read(path)
    assert not trace.complete
    assert said in trace.problem
    assert os.strerror(error) in trace.problem
    assert "--out" in trace.remedy
    assert_launches(trace, RECORDS_PER_BLOCK)


def test_output_does_not_go_into_the_trace_when_stderr_is_closed(driver: Driver, path: Path) -> None:
    assert driver("without-stderr").stdout == "the program went on\n"
    assert_launches(read(path), 10)


def test_a_missing_folder_is_reported(driver: Driver, tmp_path: Path) -> None:
    wanted = tmp_path / "missing" / "rank.trace"
    (message,) = driver("launch", 10_000, trace=wanted).stderr.splitlines()
    assert str(wanted) in message
    assert os.strerror(errno.ENOENT) in message


def test_a_descriptor_closed_by_the_program_ends_the_trace(driver: Driver, path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (message,) = driver("closed", victim).stderr.splitlines()
    assert str(path) in message
    assert victim.read_bytes() == b""
    trace = read(path)
    assert len(trace.records) == RECORDS_PER_BLOCK
    assert os.strerror(errno.EBADF) in trace.problem


def test_a_recorder_without_memory_keeps_launches_without_signatures(driver: Driver, path: Path) -> None:
    """Whichever allocation is the first to fail: the launches are all there, the later ones without a signature."""
    for allocation in range(6):
        (message,) = driver("no-memory", allocation).stderr.splitlines()
        assert "out of memory" in message
        trace = read(path)
        assert trace.complete
        assert len(trace.records) == 1000
        assert len(trace.strings) == 1 + max(0, allocation - 1)  # the first allocation is the table


@pytest.mark.parametrize("more", [{"BARE": "1"}, {"TRACE": ""}])
def test_nothing_is_written_where_nothing_is_recorded(driver: Driver, path: Path, more: dict[str, str]) -> None:
    driver("two-threads", 1000, **more)
    assert list(path.parent.iterdir()) == []


# ---- more than one process ----


@pytest.mark.parametrize("leave", ["exit", "_exit"])
def test_forked_child_has_its_own_trace(driver: Driver, path: Path, leave: str) -> None:
    child = path.with_name(f"rank3.child-{driver('fork', leave).stdout.strip()}.trace")
    assert sorted(path.parent.iterdir()) == sorted([path, child])
    parents, childs = read(path), read(child)
    assert parents.complete
    assert childs.complete
    assert parents.records["value"].tolist() == [*range(10), *range(10)]
    assert_launches(childs, 5)
    assert childs.strings == parents.strings
    assert childs.header.process != parents.header.process
    assert childs.records["host_ns"].max() < 10**9, "its time begins with itself"


def test_a_forked_child_without_records_leaves_no_trace(driver: Driver, path: Path) -> None:
    driver("fork", "silently")
    assert list(path.parent.iterdir()) == [path]
    assert len(read(path).records) == 20


def test_a_vforked_child_leaves_the_trace_alone(driver: Driver, path: Path) -> None:
    driver("vfork")
    trace = read(path)
    assert trace.complete
    assert len(trace.records) == 20


def test_another_process_with_the_same_settings_has_its_own_trace(driver: Driver, path: Path) -> None:
    other = path.with_name(f"rank3.child-{driver('sibling').stdout.strip()}.trace")
    assert len(read(path).records) == 20
    assert_launches(read(other), 5)


def test_an_old_trace_is_replaced(driver: Driver, path: Path) -> None:
    driver("launch", 10_000)
    driver("launch", 10)
    trace = read(path)
    assert trace.complete
    assert len(trace.records) == 10


@pytest.mark.parametrize(
    ("name", "child"),
    [("trace", "trace.child-{}"), (".trace", ".trace.child-{}"), ("a.b/trace", "a.b/trace.child-{}")],
)
def test_the_trace_of_a_child_is_named_after_its_parent(driver: Driver, tmp_path: Path, name: str, child: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    number = driver("fork", "exit", trace=tmp_path / name).stdout.strip()
    assert (tmp_path / child.format(number)).exists()


def test_a_trace_of_another_version_is_refused(driver: Driver, path: Path) -> None:
    driver("launch", 1)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 7)
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"format version 7; this Maya reads version 3\. Record it again"):
        read(path)


def test_a_truncated_or_damaged_header_is_refused(driver: Driver, path: Path) -> None:
    driver("launch", 1)
    data = path.read_bytes()
    for length in range(len(trace_format.MAGIC), trace_format.HEADER.size):
        path.write_bytes(data[:length])
        with pytest.raises(TraceError, match="ends within its header"):
            read(path)
    path.write_bytes(data[:20] + bytes([data[20] ^ 0xFF]) + data[21:])
    with pytest.raises(TraceError, match="damaged"):
        read(path)
    path.write_bytes(data[: trace_format.HEADER.size])
    assert len(read(path).records) == 0


# ---- showing ----


def shown(path: Path, **options: object) -> list[str]:
    return list(trace_lines(read(path), **options))  # type: ignore[arg-type]


def test_show_prints_records_and_ops(driver: Driver, path: Path) -> None:
    driver("ops")
    lines = shown(path)
    head, listing = lines[: lines.index("")], lines[lines.index("") + 2 :]
    assert head[0] == f"trace    {path}, format version 3"
    assert head[1].startswith("rank     3, process ")
    assert head[1].endswith("Test GPU")
    assert head[3] == "ended    normally"
    assert "reads    aten::_local_scalar_dense at train.py:33 read 4 B of placeholders 1 times" in head
    assert len(listing) == 5
    gemm, copy, placeholder, stream, kernel = (re.sub(r"\s+", " ", line) for line in listing)
    assert "library cublasGemmEx m=2 n=4 k=3 batch=5 a_type=bf16 aten::mm(bfloat16[2, 3] strides [1, 2], " in gemm
    assert gemm.endswith("bfloat16[3, 4], None, [1, 2]) op 2 sequence 17")
    assert "memcpy DtoH 4 KiB ProfilerStep#1() op 1" in copy
    assert "placeholder read aten::_local_scalar_dense at=train.py:33 bytes=4" in placeholder
    assert "stream create priority -1" in stream
    assert kernel.endswith("5 kernel kernel<1> grid 1x1x1 block 128x1x1 shared 0 (from a graph)")


def test_show_prints_a_part(driver: Driver, path: Path) -> None:
    driver("ops")
    lines = shown(path, kinds=parse_kinds(["op", "annotation", "placeholder-read"]), limit=1, ops=False)
    assert lines[-2].endswith("aten::mm(bfloat16[2, 3] strides [1, 2], bfloat16[3, 4], None, [1, 2]) op 2 sequence 17")
    assert lines[-1] == "… and 2 more"
    assert "_ZN2at6native6kernelILi1EEEvPf grid" in shown(path, demangle=False)[-1]


def test_show_says_that_a_trace_is_incomplete(driver: Driver, path: Path) -> None:
    driver("killed", 5000, expect=-signal.SIGKILL)
    assert (
        "ended    early: the program that wrote it crashed or is still running; the records before that are complete"
    ) in shown(path)


def test_show_prints_a_summary(driver: Driver, path: Path) -> None:
    driver("launch", 900)
    lines = shown(path, summary=True, demangle=False)
    assert lines[-1].split() == ["3", "1", "kernel", "_ZN2at6native6kernelILi9EEEvPf"]
    driver("ops")
    assert shown(path, summary=True)[-1] == "240 FLOPs in 1 matrix products of cuBLAS"
