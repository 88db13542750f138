"""torch's own tools against hangs find the same under Maya as on a cluster, and agree with Maya's report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.hang_launch import SCRIPTS, HangRun, launch
from helpers.parallel_launch import stock_environment

from rank_runtime.build import Build

pytestmark = pytest.mark.slow


Launch = Callable[..., HangRun]


@pytest.fixture
def run(build: Build, tmp_path: Path) -> Launch:
    """Runs a script, given as text or by its path, with some variables."""

    def run(script: str | Path, ranks: int, *options: str, **variables: str) -> HangRun:
        if isinstance(script, str):
            text, script = script, tmp_path / "script.py"
            script.write_text(text, encoding="utf-8")
        return launch(tmp_path, script, ranks, *options, **variables)

    return run


# ---- the watchdog ----

ABSENT = """
import datetime, time
import torch
import torch.distributed as dist

dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=8))
rank = dist.get_rank()
torch.cuda.set_device(rank)
value = torch.ones(64, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
if rank == 1:
    time.sleep(SECONDS)
dist.all_reduce(value, async_op=True).wait()
torch.cuda.synchronize()
print("done", rank)
dist.destroy_process_group()
"""


def test_torchs_watchdog_dumps_and_names_the_absent_rank_and_ends_the_others(run: Launch, tmp_path: Path) -> None:
    ended = run(
        ABSENT.replace("SECONDS", "60"),
        3,
        "--on-hang",
        "wait",
        TORCH_NCCL_DESYNC_DEBUG="1",
        TORCH_FR_BUFFER_SIZE="200",
        TORCH_NCCL_DUMP_ON_TIMEOUT="1",
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000",
        TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "dump_"),
    )
    assert ended.exit_code == 1
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE" in ended.output
    assert "[1] finished collective #1, but didn't join collective #2" in ended.output
    assert "script.py:14" in ended.output
    assert -6 in (ended.exit_codes[0], ended.exit_codes[2])  # the first to time out ends the others
    assert ended.report is None, "who sleeps is not stuck"
    for rank in range(3):
        assert (tmp_path / f"dump_{rank}").stat().st_size > 0


def test_without_error_handling_a_late_rank_is_waited_for(run: Launch) -> None:
    ended = run(
        ABSENT.replace("SECONDS", "9"),
        2,
        TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
        TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="2000",
    )
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("done") == 2


def test_a_blocking_wait_raises_in_the_script(run: Launch) -> None:
    ended = run(ABSENT.replace("SECONDS", "60"), 2, "--on-hang", "wait", TORCH_NCCL_BLOCKING_WAIT="1")
    assert ended.exit_code == 1
    assert "timed out in blocking wait" in ended.output
    assert "DistBackendError: [Rank 0] Watchdog caught collective operation timeout" in ended.output
    assert ended.exit_codes[0] == 1


# ---- checks of torch's ----


def test_torchs_collective_fingerprints_find_the_mismatch_first(run: Launch) -> None:
    ended = run(SCRIPTS / "mismatched_sizes.py", 4, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.exit_code == 1
    assert "RuntimeError: Detected mismatch between collectives on ranks. Rank 3" in ended.output
    assert "TensorShape=[48]" in ended.output
    assert ended.report is None


def test_a_missing_rank_is_reported_when_torch_compares_calls(run: Launch) -> None:
    """Its comparison is a Gloo collective, in which the others stand."""
    ended = run(SCRIPTS / "conditional_all_reduce.py", 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.exit_code == 1
    assert ended.report is not None
    assert ended.report["kind"] == "deadlock"
    places = {tuple(group["ranks"]): group["stands_at"]["line"] for group in ended.report["groups"]}
    assert places == {(0,): 15, (1,): 17}


LOGGING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[rank])
for step in range(3):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
torch.cuda.synchronize()
print(model._get_ddp_logging_data()["iteration"])
dist.destroy_process_group()
"""


def test_ddp_logs_are_written(run: Launch) -> None:
    ended = run(LOGGING, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL", TORCH_CPP_LOG_LEVEL="INFO")
    assert ended.exit_code == 0, ended.output
    assert "[Rank 0]: DDP Initialized with:" in ended.output
    assert "[Rank 1 / 2] [before iteration" in ended.output


MONITORED = """
import datetime, time
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() in (1, 3):
    time.sleep(60)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=3), wait_all_ranks=True)
"""


def test_a_monitored_barrier_names_the_absent_ranks(run: Launch) -> None:
    ended = run(MONITORED, 4)
    assert ended.exit_code == 1
    assert "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms" in ended.output
    assert ended.report is None


# ---- torchfrtrace ----

VERDICTS = {
    "mismatched_sizes": (4, "Collective sequence number: 2 has errors", "SIZE_OR_SYNTAX_MISMATCH"),
    "different_operations": (2, "Culprit rank 1", "COLLECTIVE_TYPE_MISMATCH"),
    "mismatched_types": (2, "Culprit rank 1", "COLLECTIVE_DTYPE_MISMATCH"),
    "uneven_all_to_all": (2, "Input/output mismatch in the collective sequence number: 1", "total output numel: 26"),
    "conditional_all_reduce": (2, "Not all ranks joining collective, sequence number: 3", "missing ranks: {1}"),
    "send_without_receive": (2, "collective: nccl:send 0->1", "missing ranks: {1}"),
}


@pytest.mark.parametrize("script", VERDICTS)
def test_torchs_flight_recorder_analysis_finds_the_same(script: str, run: Launch, build: Build) -> None:
    ranks, *verdict = VERDICTS[script]
    ended = run(SCRIPTS / f"{script}.py", ranks)
    folder = ended.folder / "flight_recorder"
    assert sorted(file.name for file in folder.iterdir()) == [f"rank_{rank}" for rank in range(ranks)]
    tool = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_", str(folder)]
    found = subprocess.run(tool, env=stock_environment(build), capture_output=True, text=True, timeout=100)
    output = found.stdout + found.stderr
    assert all(part in output for part in verdict), output
    assert ended.report is not None
    ours = [group for group in ended.report["groups"] if group["state"] in ("waits", "posted")][-1]
    assert f"{script}.py:{ours['called_at']['line']}" in output
    assert not ours["missing"] or f"missing ranks: {set(ours['missing'])}" in output
