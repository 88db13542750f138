"""What goes wrong on purpose: --inject, in words or in a file, and --schedule-seed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from helpers.recorded_run import maya

from maya.launcher.arguments import parse as parse_command
from maya.launcher.injected_faults import (
    EVERY_ATTEMPT,
    FaultError,
    InjectedFault,
    InjectedLinkFault,
    parse,
    read_file,
)
from maya.launcher.injection_options import Injection
from rank_runtime.build import Build

ROOT = Path(__file__).parents[2]
TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(2048, 2048, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(1024, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"done {rank} {time.perf_counter():.3f}\\n", end="")  # in one piece: ranks share the stream
    dist.destroy_process_group()


main()
"""


def run(folder: Path, *options: str, script: str | Path = TRAIN, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    if isinstance(script, str):
        (folder / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
        script = folder / "train.py"
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), *options, str(script)]
    command = [sys.executable, "-m", "maya.launcher", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    return content


# ---- what users write ----


def test_faults_are_read() -> None:
    assert parse("kill:rank=3,call=10") == InjectedFault("kill", 3, "call", 10)
    assert parse("raise:rank=0,step=2,attempt=all") == InjectedFault("raise", 0, "step", 2, attempt=EVERY_ATTEMPT)
    assert parse("delay:rank=0,call=2,seconds=1.5") == InjectedFault("delay", 0, "call", 2, seconds=1.5)
    assert parse("oom:rank=1,bytes=1GiB") == InjectedFault("oom", 1, "bytes", 1 << 30)
    assert parse("link:at=leaf0:spine1#2,left=25%") == InjectedLinkFault("leaf0:spine1#2=25%")
    assert parse("link:at=node0/nic3") == InjectedLinkFault("node0/nic3=lost")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kil:rank=1,call=2", 'there is no fault "kil" (did you mean kill?)'),
        ("kill:rnk=1,call=2", 'unknown key "rnk" (did you mean rank?); kill takes rank and call or step'),
        ("kill:rank=1", "kill takes rank and call or step"),
        ("kill:rank=1,call=1,step=1", "kill takes rank and call or step"),
        ("drop:rank=one,call=2", "rank: 'one' is not a whole number"),
        ("drop:rank=1,step=2", 'unknown key "step"'),
        ("drop:rank=1,call=0", "call: 0 is not a whole number of at least 1"),
        ("drop:rank=1,rank=2,call=1", "rank is there twice"),
        ("delay:rank=1,call=2,seconds=0", "seconds: 0 is not a number of seconds"),
        ("oom:rank=1,bytes=much", 'bytes: "much" is not a size'),
        ("link:at=node0/nic3,left=110%", "between 0 and 1"),
        ("link:at=node0/nic3,left=slow", "neither a part of its rate"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, expected: str) -> None:
    with pytest.raises(FaultError) as found:
        parse(text)
    assert expected in str(found.value)


def test_faults_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[[kill]]\nrank = 3\ncall = 10\n[[link]]\nat = "node0/nic3"\nleft = "25%"\n', encoding="utf-8")
    assert read_file(str(file)) == (InjectedFault("kill", 3, "call", 10), InjectedLinkFault("node0/nic3=25%"))
    for content, expected in (
        ("[[kill]]\nrank = 3\ncal = 10", '[[kill]] number 1: unknown key "cal" (did you mean call?)'),
        ("[[kil]]\nrank = 3", 'there is no fault "kil" (did you mean kill?)'),
        ("[kill]\nrank = 3", "expected tables, [[kill]]"),
        ("[[kill]", "not valid TOML"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(FaultError) as found:
            read_file(str(file))
        assert expected in str(found.value)
        assert str(file) in str(found.value)


def test_a_rank_is_told_its_own_faults_in_their_attempt() -> None:
    words = (
        "kill:rank=1,call=2",
        "raise:rank=1,step=3,attempt=2",
        "drop:rank=1,call=4,attempt=all",
        "oom:rank=0,step=1",
    )
    injection = Injection(tuple(map(parse, words)))
    assert injection.of_rank(1, 0) == "kill:rank=1,call=2;drop:rank=1,call=4"
    assert injection.of_rank(1, 1) == "raise:rank=1,step=3;drop:rank=1,call=4"
    assert injection.of_rank(0, 1) == ""
    assert injection.texts() == words


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--inject", "kill:rank=2,call=1"], "there is no rank 2; ranks are 0 to 1"),
        (["--inject", "kill:rank=1,call=1,attempt=3", "--max-restarts", "1"], "such attempt without --max-restarts 2"),
        (["--inject", "link:at=node0/nic3", "--no-trace"], "a link takes virtual time, which --no-trace does without"),
        (["--inject", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--schedule-seed", "-1"], "'-1' is not a whole number"),
    ],
)
def test_what_could_never_happen_is_refused(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command(["--nproc", "2", *options, "train.py"], {})
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_link_that_is_not_there_is_refused(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--inject", "link:at=node0/nik3")
    assert ended.returncode == 2
    assert 'fault of "node0/nik3": nothing here has that name (did you mean node0/nic3' in ended.stderr


# ---- in a rank ----


def test_one_rank_raises_and_the_job_is_restarted(build: Build, tmp_path: Path) -> None:
    """As under torchrun: the exception is in the rank's error file, the others are ended, and all begin again."""
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", "raise:rank=1,call=6")
    assert ended.returncode == 0, ended.stderr
    reason = "call 6 of rank 1 fails, as --inject raise:rank=1,call=6 asks for"
    (error_file,) = (tmp_path / "out").rglob("attempt_0/1/error.json")
    message = json.loads(error_file.read_text(encoding="utf-8"))["message"]
    assert message["message"].startswith("DistBackendError: NCCL error")
    assert reason in message["message"]
    root_cause = ended.stderr.split("Root Cause")[1]
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : 1" in root_cause
    assert ended.stdout.count("done") == 2
    assert summary(tmp_path)["attempts"] == 2
    assert summary(tmp_path)["injected"] == ["raise:rank=1,call=6"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "exit_code", "expected"),
    [
        ("kill:rank=1,step=2", -signal.SIGKILL, "Signal 9 (SIGKILL) received by PID"),
        ("kill:rank=1,call=6", -signal.SIGKILL, "Signal 9 (SIGKILL) received by PID"),
        ("raise:rank=1,step=2", 1, "RuntimeError: rank 1 fails after step 2, as --inject raise:rank=1,step=2 asks for"),
        ("oom:rank=1,step=2", 1, "OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("oom:rank=1,allocation=2", 1, "OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ],
)
def test_a_job_goes_on_after_a_restart(build: Build, tmp_path: Path, fault: str, exit_code: int, expected: str) -> None:
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", fault)
    assert ended.returncode == 0, ended.stderr
    assert expected in ended.stderr
    assert f"exitcode  : {exit_code} (pid: " in ended.stderr.split("Root Cause")[1]
    assert ended.stdout.count("done") == 2
    assert not (tmp_path / "out" / "hang.json").exists()


@pytest.mark.slow
def test_a_fault_of_every_attempt_uses_up_the_restarts(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--max-restarts", "1", "--inject", "kill:rank=1,step=1,attempt=all")
    assert ended.returncode == 1
    assert ended.stderr.count("Root Cause") == 2
    assert [rank["exit_code"] for rank in summary(tmp_path)["ranks"]] == [-signal.SIGTERM, -signal.SIGKILL]


OUT_OF_MEMORY = """
import torch

torch.cuda.set_device(0)
kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
for size in (2 << 30, 1 << 30):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        print("fits", size)
        break
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_memory_runs_out_as_pytorch_says_it(build: Build, tmp_path: Path) -> None:
    """The numbers fit together, and a program that asks for less goes on. With one rank, too."""
    ended = run(tmp_path, "--inject", "oom:rank=0,allocation=2", script=OUT_OF_MEMORY, ranks=1)
    assert ended.returncode == 0, ended.stderr
    assert (
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0 bytes is free" in ended.stdout
    )
    assert "3.00 GiB is allocated by PyTorch" in ended.stdout
    assert f"fits {1 << 30}" in ended.stdout


STEPS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
for step in range(6):
    dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
"""


@pytest.mark.slow
def test_a_dropped_collective_is_found(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--inject", "drop:rank=1,call=3", script=STEPS)
    assert ended.returncode == 1
    assert "rank 0: waits in all_reduce #3 of the default group" in ended.stderr
    assert "rank 1 never called it" in ended.stderr


@pytest.mark.slow
def test_a_communicator_fails_as_if_the_network_had(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", "--inject", "error:rank=1,call=6")
    assert ended.returncode == 1
    assert "a call on it has failed, as --inject asks for" in ended.stderr
    assert "ncclRemoteError" in ended.stderr


@pytest.mark.slow
def test_a_rank_is_late_by_all_clocks_and_in_the_prediction(build: Build, tmp_path: Path) -> None:
    """In a replay, too: the delay is in the trace. A rank that sleeps is no hang."""
    ended = run(tmp_path, "--inject", "delay:rank=1,call=7,seconds=2.5", "--inject", "kill:rank=1,call=99")
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "out" / "hang.json").exists()
    clocks = [float(line.split()[2]) for line in ended.stdout.splitlines()]
    assert [int(10 * seconds) for seconds in clocks] == [25, 25]
    assert summary(tmp_path)["prediction"]["steps"]
    assert "--inject kill:rank=1,call=99 never happened: the rank made 9 calls, 4 steps" in ended.stderr


# ---- links ----


@pytest.mark.slow
def test_a_slow_link_is_in_the_clocks_the_prediction_and_the_replay(build: Build, tmp_path: Path) -> None:
    clocks = []
    for name, options in (("well", []), ("slow", ["--inject", "link:at=node0/nic0,left=10%"])):
        (tmp_path / name).mkdir()
        place = ["--nnodes", "2", "--nproc-per-node", "1", "--cluster", "dgx-h100", *options]
        ended = run(tmp_path / name, *place)
        assert ended.returncode == 0, ended.stderr
        clocks.append(summary(tmp_path / name)["emulation"]["coordinator"]["host_ns"])
    assert min(clocks[1]) > max(clocks[0])
    replayed = maya("whatif", tmp_path / "well" / "out", "--fault", "node0/nic0=10%", "--json")
    assert replayed.exit_code == 0, replayed.output
    asked_later = json.loads(replayed.output)["what_if"]["step_ns"]
    assert summary(tmp_path / "slow")["prediction"]["steps"]["median_ns"] == asked_later


# ---- the order of events ----

RACE = ROOT / "tests" / "jobs" / "races" / "first_to_finish.py"


def test_a_race_goes_well_without_a_seed(build: Build, tmp_path: Path) -> None:
    ended = run(tmp_path, "--no-trace", script=RACE)
    assert ended.returncode == 0, ended.stderr
    assert "is different" not in ended.stdout


@pytest.mark.parametrize(
    ("seed", "rank", "step"),
    [(2, 0, 0), pytest.param(5, 1, 4, marks=pytest.mark.slow), pytest.param(6, 0, 1, marks=pytest.mark.slow)],
)
def test_a_race_is_found_by_a_seed(build: Build, tmp_path: Path, seed: int, rank: int, step: int) -> None:
    """Always the same way, and so in the step and rank that were noted here."""
    ended = run(tmp_path, "--no-trace", "--schedule-seed", str(seed), script=RACE)
    assert ended.returncode == 1
    assert f"mismatch: collective {step} on communicator" in ended.stderr
    assert ended.stdout.startswith(f"rank {rank} is different in step {step}\n")
    assert f"rank {1 - rank} is different in step {step}" not in ended.stdout
    assert summary(tmp_path)["schedule_seed"] == seed


def test_predicted_times_do_not_depend_on_the_order_of_events(build: Build, tmp_path: Path) -> None:
    results = []
    for name, options in (("none", []), ("seed", ["--schedule-seed", "4"])):
        (tmp_path / name).mkdir()
        ended = run(tmp_path / name, *options)
        assert ended.returncode == 0, ended.stderr
        content = summary(tmp_path / name)
        prediction = content["prediction"]
        del prediction["memory"]  # which depends on when PyTorch's allocator looks at other streams
        for rank in prediction["ranks"]:
            del rank["memory_bytes"]
        results.append((sorted(ended.stdout.splitlines()), prediction, content["emulation"]["coordinator"]["host_ns"]))
    assert results[0] == results[1]
