"""maya-torchrun with several ranks: the environment of each, output, restarts and the summary.

The scripts here use Gloo, or nothing at all: how ranks communicate over NCCL is tested elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.script_run import MayaRun, ScriptRun

from maya.devices import load_device
from rank_runtime.build import Build
from rank_runtime.environment import rank_environment

ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def outputs(log_folder: Path, name: str = "stdout.log", attempt: int = 0) -> list[str]:
    files = log_folder.glob(f"*/attempt_{attempt}/*/{name}")
    return [file.read_text() for file in sorted(files, key=lambda file: int(file.parent.name))]


def logs(run: ScriptRun, name: str, attempt: int = 0) -> list[str]:
    return outputs(run.folder / "logs", name, attempt)


def test_every_rank_has_the_environment_of_torchrun(maya_run: MayaRun, build: Build, tmp_path: Path) -> None:
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
    different |= {"MAYA_COORDINATOR", "MAYA_COORDINATOR_SECRET", "MAYA_ZMQ", "MAYA_RECORD_STEPS", "MAYA_TRACEBACKS"}
    for real, ours in zip(outputs(log_folder), outputs(run.folder / "logs"), strict=True):
        real, ours = json.loads(real), json.loads(ours)
        assert {
            name: (real.get(name), ours.get(name)) for name in real.keys() | ours.keys() if name not in different
        } == {name: (ours[name], ours[name]) for name in ours if name not in different}
        assert different <= ours.keys()


def test_ranks_are_placed_on_the_nodes_of_the_cluster(maya_run: MayaRun) -> None:
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


def test_ranks_communicate_over_gloo(maya_run: MayaRun) -> None:
    run = maya_run(GLOO, "--nproc", "4")
    assert run.exit_code == 0, run.stderr
    assert run.stdout == "[6, 10, 14] [{'rank': 0}, {'rank': 1}, {'rank': 2}, {'rank': 3}]\n"
    assert "4 ranks on virtual NVIDIA H100 80GB HBM3, " in run.stderr


def test_output_of_several_ranks_is_prefixed_and_logged(maya_run: MayaRun) -> None:
    text = """
        import os, sys
        sys.stdout.write(f"out {os.environ['RANK']}\\n")  # in one piece: the ranks share some of their streams
        sys.stderr.write(f"err {os.environ['RANK']}\\n")
    """
    words = ("--no-preload", "--nproc", "4")
    run = maya_run(text, *words, "--nnodes", "2", "--redirects", "0:3", "--tee", "1:1", "--role", "trainer")
    assert run.exit_code == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == ["[trainer1]:out 1", "[trainer3]:out 3"]  # local ranks 1
    assert {line for line in run.stderr.splitlines() if line.startswith("err")} == {"err 1", "err 3"}
    assert logs(run, "stdout.log") == [f"out {rank}\n" for rank in range(4)]
    assert logs(run, "stderr.log") == ["err 0\n", "err 2\n"]
    run = maya_run(text, *words, "--local-ranks-filter", "1,2", "--tee", "2:1,3:1")
    assert sorted(run.stdout.splitlines()) == ["[default2]:out 2", "out 1"]
    assert logs(run, "stdout.log") == ["out 2\n", "out 3\n"]
    run = maya_run(text, *words, "--nnodes", "2", "--local-ranks-filter", "0")  # one rank of each node
    assert sorted(run.stdout.splitlines()) == ["out 0", "out 2"]
    run = maya_run(text, *words, "--nnodes", "2", "--ranks-filter", "0-1,3", "--tee", "1:1")
    assert sorted(run.stdout.splitlines()) == ["[default1]:out 1", "[default3]:out 3", "out 0"]


def test_all_ranks_are_restarted(maya_run: MayaRun) -> None:
    run = maya_run(
        """
        import os, sys, time
        rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(rank, attempt, flush=True)
        open(f"printed-{rank}", "w").close()
        while not os.path.exists("printed-0"):
            time.sleep(0.01)
        if attempt == "0":
            sys.exit(3) if rank == "1" else time.sleep(60)
        """,
        *("--no-preload", "--nproc", "2", "--max-restarts", "2", "--redirects", "1"),
    )
    assert run.exit_code == 0, run.stderr
    assert [logs(run, "stdout.log", attempt) for attempt in (0, 1)] == [["0 0\n", "1 0\n"], ["0 1\n", "1 1\n"]]
    assert run.stderr.count("FAILED") == 1
    assert "restarting the workers: 1 of 2 restarts" in run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    assert (content["attempts"], content["exit_code"]) == (2, 0)


def test_a_program_that_is_no_python_script_runs_on_every_rank(tmp_path: Path, build: Build) -> None:
    command = "echo $RANK of $WORLD_SIZE on $0 ${local_rank}"
    words = ["--nproc", "3", "--tee", "1", "--no-python", "/bin/sh", "-c", command, "$LOCAL_RANK"]
    ended = subprocess.run(
        [sys.executable, "-m", "maya.launcher", *words], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 0, ended.stderr
    lines = [f"[default{rank}]:{rank} of 3 on $LOCAL_RANK {rank}" for rank in range(3)]
    assert sorted(ended.stdout.splitlines()) == lines


def test_the_local_rank_is_substituted_in_arguments(maya_run: MayaRun) -> None:
    arguments = ["--local=${local_rank}", "$x"]
    run = maya_run(
        "import sys; print(sys.argv[1:])", "--no-preload", "--nproc", "2", "-r", "1", script_arguments=arguments
    )
    assert run.exit_code == 0, run.stderr
    assert logs(run, "stdout.log") == ["['--local=0', '$x']\n", "['--local=1', '$x']\n"]


def test_the_summary_describes_the_run_and_its_ranks(maya_run: MayaRun) -> None:
    run = maya_run("import torch, os; torch.ones(1, device='cuda') if os.environ['RANK'] == '1' else 0", "--nproc", "2")
    assert run.exit_code == 0, run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    expected = {
        "version": 3,
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


def test_ranks_share_the_memory_for_kept_contents(maya_run: MayaRun) -> None:
    run = maya_run("import os; print(os.environ['MAYA_KEPT_BYTES'] + chr(10), end='')", "--no-preload", "--nproc", "16")
    assert run.stdout.split() == [str(2**27)] * 16
    run = maya_run("import os; print(os.environ['MAYA_KEPT_BYTES'])", environment={"MAYA_KEPT_BYTES": "5"})
    assert run.stdout.split() == ["5"]
