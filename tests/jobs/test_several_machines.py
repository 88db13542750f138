"""Jobs on several machines, played by node agents on this one (tests/helpers/local_agents.py): each has a zygote, a
folder and a CURVE connection of its own. test_ray_jobs.py has real separation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import local_agents
from helpers.marked_processes import processes_with
from helpers.script_run import MayaRun

_ROOT = Path(__file__).parents[2]
_TRAIN = """
    import sys, torch, torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % 8)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"member {rank}")
    assert names[rank] == f"member {rank}" and all(name.startswith("member ") for name in names)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=dist.new_group(backend="gloo"))
    sys.stdout.write(f"rank {rank} total {int(total)}\\n")
    dist.destroy_process_group()
"""
_FAIL = """
    import os, sys, torch, torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank() % 8)
        if dist.get_rank() == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("rank two is unhappy")
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()

    main()
"""
_WAIT = """
    import subprocess, select, sys, torch, torch.distributed as dist
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % 8)
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    subprocess.Popen(["sleep", "1000"])
    sys.stdout.write("waits\\n")
    select.select([], [], [], 1000)
"""


class Launch:
    """A job on several nodes, which may still run."""

    def __init__(self, folder: Path, script: str, nodes: int, *options: str) -> None:
        (folder / "train.py").write_text(textwrap.dedent(script))
        self.nodes = folder / "nodes"
        self.nodes.mkdir()
        self.mark = f"MAYA_TEST_NODES={self.nodes}"
        self.out = folder / "out"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, local_agents.__file__, str(nodes), "--out", str(self.out), *options, "train.py"],
            cwd=folder,
            env={**os.environ, name: value, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stdout = self.stderr = ""

    def wait_for(self, line: str, count: int) -> None:
        """Until standard output has had a line this often."""
        assert self.process.stdout is not None
        while self.stdout.count(line) < count:
            read = self.process.stdout.readline()
            assert read, self.process.communicate()[1]
            self.stdout += read

    def finish(self) -> int:
        stdout, self.stderr = self.process.communicate(timeout=120)
        self.stdout += stdout
        return self.process.returncode

    def agent(self, node: int) -> int:
        return int((self.nodes / f"node-{node}.pid").read_text())


@contextmanager
def launched(folder: Path, script: str, nodes: int, *options: str) -> Iterator[Launch]:
    launch = Launch(folder, script, nodes, *options)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            launch.process.kill()
            launch.process.communicate()
        deadline = time.monotonic() + 30
        while (left := processes_with(launch.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


def test_predictions_equal_those_of_one_machine(tmp_path: Path, maya_run: MayaRun) -> None:
    with launched(tmp_path, _TRAIN, 3, "--nproc", "6", "--cluster", "dgx-h100") as launch:
        assert launch.finish() == 0, launch.stderr
    alone = maya_run(_TRAIN, "--nproc", "6", "--cluster", "dgx-h100")
    assert sorted(launch.stdout.splitlines()) == sorted(alone.stdout.splitlines())
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (launch.out, alone.folder)]
    assert summaries[0]["prediction"] == summaries[1]["prediction"]
    names = [sorted(path.name for path in folder.iterdir()) for folder in (launch.out, alone.folder)]
    assert names[0] == names[1]
    assert not list(launch.nodes.glob("*/maya-node-*"))


def test_ranks_on_several_machines_represent_others(tmp_path: Path, maya_run: MayaRun) -> None:
    options = ("--nproc", "16", "--cluster", "dgx-h100", "--represent", "0,1,9")
    with launched(tmp_path, _TRAIN, 2, *options) as launch:
        assert launch.finish() == 0, launch.stderr
    alone = maya_run(_TRAIN, *options)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (launch.out, alone.folder)]
    assert summaries[0]["prediction"] == summaries[1]["prediction"]


def test_a_failing_rank_is_reported_and_the_job_restarted(tmp_path: Path) -> None:
    with launched(tmp_path, _FAIL, 2, "--nproc", "4", "--max-restarts", "1", "--redirects", "3") as launch:
        assert launch.finish() == 0, launch.stderr
    assert "rank two is unhappy" in launch.stderr
    assert "exitcode  : 1" in launch.stderr
    (logs,) = (launch.out / "logs").iterdir()
    assert "rank two is unhappy" in (logs / "attempt_0" / "2" / "error.json").read_text()
    assert "rank two is unhappy" in (logs / "attempt_0" / "2" / "stderr.log").read_text()
    assert (logs / "attempt_1" / "3" / "stdout.log").is_file()


def test_a_lost_machine_is_named_and_the_job_restarted_on_the_others(tmp_path: Path) -> None:
    with launched(tmp_path, _WAIT, 2, "--nproc", "4", "--max-restarts", "2") as launch:
        launch.wait_for("waits", 4)
        os.kill(launch.agent(1), signal.SIGKILL)
        launch.wait_for("waits", 8)
        os.kill(launch.agent(0), signal.SIGKILL)
        assert launch.finish() == 1
    assert "node node-1 is lost, and with it ranks 2-3: its agent ended with status -9" in launch.stderr
    assert "node node-0 is lost, and with it ranks 0-3: its agent ended with status -9" in launch.stderr
    assert "Signal 9 (SIGKILL)" in launch.stderr
    assert "the workers are not restarted: no node is left" in launch.stderr
    assert (launch.out / "summary.json").is_file()  # what was there is kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_launcher_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path, _WAIT, 2, "--nproc", "4") as launch:
        launch.wait_for("waits", 4)
        launch.process.send_signal(number)
        assert launch.finish() == (1 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 30
    while list(launch.nodes.glob("*/maya-node-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(launch.nodes.glob("*/maya-node-*"))
