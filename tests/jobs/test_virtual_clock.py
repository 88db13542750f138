"""The clock of a rank: what its program sees while it runs is what the timeline says about its trace afterwards.

`virtual_clock_driver.py` is that program: parallel training, messages, graphs, streams, threads, and everything else
that has a place on the timeline, one part after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.parallel_launch import maya_torchrun
from helpers.script_run import MayaRun

from maya.replay.run_settings import RunSettings
from maya.replay.simulate import simulate
from maya.replay.timeline import Timeline
from maya.trace import RecordKind, read
from rank_runtime.build import Build

DRIVER = Path(__file__).parent / "virtual_clock_driver.py"
PARTS = (
    "ddp",
    "fsdp",
    "pipeline",
    "alone",
    "graph",
    "streams",
    "synchronizing",
    "threads",
    "beside",
    "waiting",
    "timed",
)
RANKS = 4


@dataclass(frozen=True)
class Job:
    """A job of the driver, and its timeline."""

    folder: Path
    said: list[dict[str, Any]]  # what the ranks printed
    last_ns: list[int]  # what every rank's clock said at its end
    timeline: Timeline


@pytest.fixture(scope="module")
def job(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Runs the parts named; each job once, or again."""

    @cache
    def run(*parts: str, ranks: int = RANKS, again: bool = False) -> Job:
        launched = maya_torchrun(tmp_path_factory.mktemp("job"), ranks, DRIVER, *parts)
        assert launched.exit_code == 0, launched.output
        return job_in(launched.folder / "out", launched.stdout)

    return run


def job_in(folder: Path, output: str) -> Job:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    ranks = range(len(summary["ranks"]))
    return Job(folder, lines, summary["emulation"]["coordinator"]["host_ns"], simulate(folder, detailed=ranks))


def test_every_clock_ends_at_the_end_of_the_timeline(job: Callable[..., Job]) -> None:
    done = job(*PARTS)
    assert not done.timeline.problems
    assert done.last_ns == done.timeline.host_end_ns.tolist()
    assert min(done.last_ns) > 0


@pytest.mark.parametrize("part", PARTS)
def test_a_clock_agrees_with_the_timeline(job: Callable[..., Job], part: str) -> None:
    """The driver reads it once after each part; the delay of that is the next record."""
    done = job(*PARTS)
    said = [line for line in done.said if line["part"] == part]
    assert sorted(line["rank"] for line in said) == list(range(RANKS))
    for line in said:
        detail = done.timeline.details[line["rank"]]
        delays = detail.host_ns[detail.trace.records["kind"] == RecordKind.HOST_DELAY]
        assert line["clock"] in delays


def test_times_between_events_agree_with_the_timeline(job: Callable[..., Job]) -> None:
    """The driver waits for each of them, so the host's cursor tells where they are."""
    done = job(*PARTS)
    wake = done.timeline.settings.host.wake
    for line in (line for line in done.said if line["part"] == "timed"):
        detail = done.timeline.details[line["rank"]]
        records = detail.trace.records
        waits = [
            int(at)
            for at in np.flatnonzero(records["kind"] == RecordKind.SYNCHRONIZE)
            if detail.trace.signature(int(records["signature"][at])) == {"wait": "event"}
        ][-4:]
        ns = [int(detail.host_ns[at]) - wake for at in waits]
        assert line["said"] == [float(np.float32((ns[at + 1] - ns[at]) / 1e6)) for at in (0, 2)]


def test_the_same_job_reads_the_same_clocks(job: Callable[..., Job]) -> None:
    """Parts in which the order of records does not depend on how threads are scheduled."""
    assert job("ddp", "graph", ranks=2).last_ns == job("ddp", "graph", ranks=2, again=True).last_ns


def test_nonblocking_communicators_agree_with_the_timeline(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_USE_COMM_NONBLOCKING", "1")
    launched = maya_torchrun(tmp_path, 2, DRIVER, "ddp", "pipeline")
    assert launched.exit_code == 0, launched.output
    done = job_in(tmp_path / "out", launched.stdout)
    assert done.last_ns == done.timeline.host_end_ns.tolist()


def test_sends_of_a_group_record_their_shared_bytes(job: Callable[..., Job]) -> None:
    trace = read(job(*PARTS).folder / "rank0.trace")
    calls = trace.select(RecordKind.COLLECTIVE)
    sent = [trace.signature(int(call["signature"])) for call in calls]
    shared = {call["shared_bytes"] for call in sent if call["call"] in ("ncclSend", "ncclRecv") and call["count"] == 64}
    # All on one node. A send to the own rank has the same record: so the members of an all-to-all are one rank class.
    assert shared == {64 * 4 * (RANKS - 1)}


def test_the_wall_clock_can_be_chosen(maya_run: MayaRun) -> None:
    """Without the virtual one, the program's clocks are real, and nothing is recorded about them."""
    run = maya_run(
        """
        import time, torch
        begun = time.time()
        torch.ones(8, device="cuda").sum().item()
        time.sleep(0.01)
        print(1e9 < begun <= time.time())
        """,
        "--clock",
        "wall",
    )
    assert run.stdout == "True\n"
    assert len(read(run.trace).select(RecordKind.HOST_DELAY)) == 0


def test_a_child_of_a_rank_has_real_time(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os, time, torch
        torch.ones(8, device="cuda").sum().item()
        child = os.fork()
        if child == 0:
            before = time.monotonic()
            time.sleep(0.05)
            os._exit(0 if 0.05 <= time.monotonic() - before else 1)
        print(os.waitpid(child, 0)[1])
        """
    )
    assert run.output.startswith("0\n"), run.output


def test_a_run_without_a_network_and_host_costs_counts_kernels_only(maya_run: MayaRun) -> None:
    """Then the clock counts what the device does, and nothing else."""
    run = maya_run(
        """
        import time, torch
        matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        before = time.perf_counter_ns()
        matrix @ matrix
        torch.cuda.synchronize()
        print(time.perf_counter_ns() - before)
        """,
        *("--host-time", "zero"),
    )
    timeline = simulate(run.folder)
    part = timeline.groups[0]
    assert RunSettings.load(run.folder).host_time == "zero"
    assert int(run.stdout) == part.end_ns[-1, 0] - part.start_ns[-1, 0]
