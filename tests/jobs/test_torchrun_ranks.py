"""maya-torchrun with several ranks: what each finds in its environment, output, restarts, the summary; and the parts
that say how a job of many ranks is doing, whether it fits, and how it failed.

The scripts here use Gloo, or nothing at all: how ranks communicate over NCCL is tested elsewhere.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maya.devices import load_device
from maya.doctor import Verdict
from maya.launcher import capacity
from maya.launcher.failure import Failure, failure_block
from maya.launcher.logs import Followed
from maya.launcher.progress import Progress
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment

if TYPE_CHECKING:
    from conftest import Run

    MayaRun = Callable[..., Run]

ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def outputs(log_folder: Path, name: str = "stdout.log", attempt: int = 0) -> list[str]:
    files = log_folder.glob(f"*/attempt_{attempt}/*/{name}")
    return [file.read_text() for file in sorted(files, key=lambda file: int(file.parent.name))]


def logs(run: Run, name: str, attempt: int = 0) -> list[str]:
    return outputs(run.folder / "logs", name, attempt)


def test_the_environment_is_torchruns(maya_run: MayaRun, build: Build, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ENVIRONMENT)
    log_folder = tmp_path / "torchrun"
    own = {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "3,4,5", "MINE": "kept"}
    virtual = rank_environment(build, load_device("h100").cuda_properties(), {}, os.environ)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--virtual-local-rank"]
    ended = subprocess.run(
        [*words, "--role", "trainer", "--max-restarts", "2", "-r", "1", "--log-dir", str(log_folder), str(script)],
        cwd=tmp_path,
        env={**os.environ, **virtual, **own},
        capture_output=True,
        text=True,
        timeout=180,
    )
    run = maya_run(
        ENVIRONMENT,
        *("--nproc", "3", "--virtual-local-rank", "--role", "trainer", "--max-restarts", "2", "--no-trace", "-r", "1"),
        environment=own,
    )
    assert (run.exit_code, ended.returncode) == (0, 0), run.stderr + ended.stderr
    different = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
    different |= {"MAYA_COORDINATOR", "MAYA_COORDINATOR_SECRET", "MAYA_ZMQ"}
    for real, ours in zip(outputs(log_folder), outputs(run.folder / "logs"), strict=True):
        real, ours = json.loads(real), json.loads(ours)
        assert {
            name: (real.get(name), ours.get(name)) for name in real.keys() | ours.keys() if name not in different
        } == {name: (ours[name], ours[name]) for name in ours if name not in different}
        assert different <= ours.keys()


def test_nodes_and_the_cluster(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import json, os, torch
        print(json.dumps({**os.environ, "GPUS": torch.cuda.device_count(), "NAME": torch.cuda.get_device_name()}))
        """,
        *("--nproc", "8", "--cluster", "gb200-nvl72", "--redirects", "1"),
    )
    assert run.exit_code == 0, run.stderr
    states = [json.loads(output) for output in logs(run, "stdout.log")]
    assert len(states) == 8
    for rank, state in enumerate(states):
        assert (state["RANK"], state["LOCAL_RANK"], state["GROUP_RANK"]) == (str(rank), str(rank % 4), str(rank // 4))
        assert (state["WORLD_SIZE"], state["LOCAL_WORLD_SIZE"], state["GROUP_WORLD_SIZE"]) == ("8", "4", "2")
        assert (state["GPUS"], state["NAME"]) == (4, load_device("gb200").name)


GLOO = """
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    numbers = torch.arange(3) + dist.get_rank()
    dist.all_reduce(numbers)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    dist.monitored_barrier()
    if dist.get_rank() == 0:
        print(numbers.tolist(), gathered)
    dist.destroy_process_group()
"""


def test_gloo(maya_run: MayaRun) -> None:
    run = maya_run(GLOO, "--nproc", "4")
    assert run.exit_code == 0, run.stderr
    assert run.stdout == "[6, 10, 14] [{'rank': 0}, {'rank': 1}, {'rank': 2}, {'rank': 3}]\n"
    assert "4 ranks on virtual NVIDIA H100 80GB HBM3, " in run.stderr


def test_output(maya_run: MayaRun) -> None:
    text = """
        import os, sys
        sys.stdout.write(f"out {os.environ['RANK']}\\n")  # in one piece: the ranks share some of their streams
        sys.stderr.write(f"err {os.environ['RANK']}\\n")
    """
    run = maya_run(text, "--nproc", "4", "--nnodes", "2", "--redirects", "0:3", "--tee", "1:1", "--role", "trainer")
    assert run.exit_code == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == ["[trainer1]:out 1", "[trainer3]:out 3"]  # local ranks 1
    assert {line for line in run.stderr.splitlines() if line.startswith("err")} == {"err 1", "err 3"}
    assert logs(run, "stdout.log") == [f"out {rank}\n" for rank in range(4)]
    assert logs(run, "stderr.log") == ["err 0\n", "err 2\n"]
    run = maya_run(text, "--nproc", "4", "--local-ranks-filter", "1,2", "--tee", "2:1,3:1")
    assert sorted(run.stdout.splitlines()) == ["[default2]:out 2", "out 1"]
    assert logs(run, "stdout.log") == ["out 2\n", "out 3\n"]


def test_all_ranks_are_restarted(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os, sys, time
        rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(rank, attempt, flush=True)
        if attempt == "0":
            sys.exit(3) if rank == "1" else time.sleep(60)
        """,
        *("--nproc", "2", "--max-restarts", "2", "--redirects", "1"),
    )
    assert run.exit_code == 0, run.stderr
    assert [logs(run, "stdout.log", attempt) for attempt in (0, 1)] == [["0 0\n", "1 0\n"], ["0 1\n", "1 1\n"]]
    assert run.stderr.count("FAILED") == 1
    assert "restarting the workers: 1 of 2 restarts" in run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    assert (content["attempts"], content["exit_code"]) == (2, 0)


def test_a_program_of_its_own(tmp_path: Path, build: Build) -> None:
    command = "echo $RANK of $WORLD_SIZE on $0 ${local_rank}"
    words = ["--nproc", "3", "--tee", "1", "--no-python", "/bin/sh", "-c", command, "$LOCAL_RANK"]
    ended = subprocess.run(
        [sys.executable, "-m", "maya.launcher", *words], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 0, ended.stderr
    lines = [f"[default{rank}]:{rank} of 3 on $LOCAL_RANK {rank}" for rank in range(3)]
    assert sorted(ended.stdout.splitlines()) == lines


def test_the_local_rank_in_arguments(maya_run: MayaRun) -> None:
    arguments = ["--local=${local_rank}", "$x"]
    run = maya_run("import sys; print(sys.argv[1:])", "--nproc", "2", "--redirects", "1", script_arguments=arguments)
    assert run.exit_code == 0, run.stderr
    assert logs(run, "stdout.log") == ["['--local=0', '$x']\n", "['--local=1', '$x']\n"]


def test_summary(maya_run: MayaRun) -> None:
    run = maya_run("import torch, os; torch.ones(1, device='cuda') if os.environ['RANK'] == '1' else 0", "--nproc", "2")
    assert run.exit_code == 0, run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    expected = {
        "version": 2,
        "world_size": 2,
        "nodes": 1,
        "ranks_per_node": 2,
        "cluster": None,
        "gpu": "NVIDIA H100 80GB HBM3",
        "exit_code": 0,
        "attempts": 1,
        "stopped_by": None,
        "problem": None,
        "ranks": [
            {"rank": 0, "exit_code": 0, "trace": None},
            {"rank": 1, "exit_code": 0, "trace": "rank1.trace"},
        ],
    }
    assert expected.items() <= content.items()
    assert (run.folder / "rank1.trace").exists()
    assert "rank 1: " in run.stderr


# ---- parts ----


def test_files_are_followed_line_by_line(tmp_path: Path) -> None:
    console = io.StringIO()
    file = tmp_path / "stdout.log"
    followed = Followed(file, "[default0]:", console)
    assert not followed.show(complete=False)  # not there yet
    with file.open("wb") as growing:
        for piece in (b"one\ntw", b"o\n\xff\n", b"", b"three"):
            growing.write(piece)
            growing.flush()
            assert followed.show(complete=False) == bool(piece)
    followed.show(complete=True)
    assert console.getvalue() == "[default0]:one\n[default0]:two\n[default0]:\ufffd\n[default0]:three\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress() -> None:
    progress = Progress(8, Terminal())
    seen = [progress.text()]
    for name, value in (("started", 3), ("started", 8), ("joined", 5), ("joined", 8), ("steps", 2), ("finished", 1)):
        setattr(progress, name, value)
        seen.append(progress.text())
    assert [text.removeprefix("maya-torchrun: ") for text in seen] == [
        "importing modules",
        "3 of 8 ranks started",
        "0 of 8 ranks initialised",
        "5 of 8 ranks initialised",
        "8 of 8 ranks initialised",
        "optimizer step 2",
        "1 of 8 ranks finished",
    ]
    assert Progress(1, Terminal()).seconds() is None


@pytest.mark.parametrize(
    ("check", "verdict", "advice"),
    [
        (capacity.check_open_files(1024, 1 << 20), Verdict.OK, ""),
        (capacity.check_open_files(1024, resource.RLIM_INFINITY), Verdict.OK, ""),
        (capacity.check_open_files(1024, 1024), Verdict.FAIL, "1024 ranks need 2112"),
        (capacity.check_processes(1024, None, ""), Verdict.OK, ""),
        (capacity.check_processes(1024, 32000, "kernel.pid_max"), Verdict.OK, ""),
        (capacity.check_processes(4096, 32000, "kernel.pid_max"), Verdict.WARN, "about 49152 with their threads"),
        (capacity.check_processes(1024, 500, "pids.max"), Verdict.FAIL, "raise pids.max"),
        (capacity.check_memory(1024, 24 << 30, shared=True), Verdict.OK, ""),
        (capacity.check_memory(1024, 12 << 30, shared=True), Verdict.WARN, "1024 ranks need about 18.6 GiB"),
        (capacity.check_memory(1024, 2 << 30, shared=True), Verdict.FAIL, "use fewer ranks"),
        (capacity.check_memory(64, 24 << 30, shared=False), Verdict.OK, ""),
        (capacity.check_memory(256, 24 << 30, shared=False), Verdict.WARN, "256 ranks need about 63.1 GiB"),
    ],
)
def test_limits(check: Any, verdict: Verdict, advice: str) -> None:
    assert check.verdict is verdict
    assert advice in check.advice


def test_limits_of_this_machine() -> None:
    assert [check.subject for check in capacity.examine(2, shared=True)] == ["open files", "processes", "memory"]


def test_a_failure_of_many_ranks_is_told_in_few_lines() -> None:
    failures = [
        Failure(rank, rank % 8, 100 + rank, -15, "<N/A>", "text", 50) for rank in (7, *range(7), *range(9, 1024))
    ]
    block = failure_block("train.py", failures)
    others, root = block.split("Root Cause (first observed failure):")
    assert "rank      : 7 (" in root
    assert others.count("rank      :") == 15
    assert "... and 1007 more; ranks 0-6, 9-1023" in others


def test_ranks_share_the_room_for_contents(maya_run: Callable[..., Run]) -> None:
    run = maya_run("import os; print(os.environ['MAYA_KEPT_BYTES'] + chr(10), end='')", "--nproc", "16")
    assert run.stdout.split() == [str(2**27)] * 16
    run = maya_run("import os; print(os.environ['MAYA_KEPT_BYTES'])", environment={"MAYA_KEPT_BYTES": "5"})
    assert run.stdout.split() == ["5"]
