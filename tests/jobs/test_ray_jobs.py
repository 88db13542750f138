"""maya-torchrun --ray on three machines that share nothing but TCP (tests/helpers/ray_namespaces.py)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.ray_namespaces import NamespacedMachine, RayNamespaces, missing

_WHY_NOT = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]

_EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
_LAUNCHER = (sys.executable, "-m", "maya.launcher")
_TRACES_OF_US = ("maya-", "maya.", "node_agent", "coordinator.", "train.py")  # in the command lines of our processes
_SMALL = "--layers 4 --hidden 64 --heads 8 --vocabulary 512 --sequence 64 --steps 3"
_STEPS = """
    import os, sys, torch, torch.distributed as dist
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % 8)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(os.environ["STEPS"])):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step == 20:
            sys.stdout.write(f"rank {rank} has done 20 steps\\n")
    dist.destroy_process_group()
"""
_SOME, _MANY, _ENDLESS = 60, 1000, 1 << 40
# Sends random bytes to TCP ports, and ZeroMQ messages with keys of its own.
_STRANGER = """
    import os, random, socket, sys
    import zmq
    address, *ports = sys.argv[1:]
    random.seed(1)
    for port in map(int, ports):
        for size in (1, 7, 64, 300, 4096):
            with socket.create_connection((address, port), timeout=5) as connection:
                connection.settimeout(0.5)
                try:
                    connection.sendall(random.randbytes(size))
                    connection.recv(64)
                except OSError:
                    pass
        for curve in (False, True):
            context = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            dealer.set(zmq.LINGER, 0)
            if curve:
                public, secret = zmq.curve_keypair()
                dealer.set(zmq.CURVE_SERVERKEY, zmq.curve_keypair()[0])
                dealer.set(zmq.CURVE_PUBLICKEY, public)
                dealer.set(zmq.CURVE_SECRETKEY, secret)
            dealer.connect(f"tcp://{address}:{port}")
            for _ in range(20):
                dealer.send(random.randbytes(50))
            assert not dealer.poll(500), dealer.recv()
            dealer.close()
            context.term()
    print("not heard")
"""


class RayJob:
    """Six ranks, two on each machine of a cluster; started on one of them."""

    def __init__(self, cluster: RayNamespaces, steps: int, node: int = 0, **variables: str) -> None:
        self._machine = cluster.machines[node]
        name = f"job-{time.monotonic_ns()}"
        self._folder = self._machine.tmp / name
        self._folder.mkdir()
        (self._folder / "train.py").write_text(textwrap.dedent(_STEPS), encoding="utf-8")
        self.log = self._folder / "log"
        words = ["--ray", cluster.address, "--nproc", "6", "--nproc-per-node", "2", "--out", "out", "train.py"]
        with self.log.open("w") as log:
            self.process = self._machine.start(
                [*_LAUNCHER, *words],
                {"STEPS": str(steps), **variables},
                f"/tmp/{name}",
                stdin=subprocess.DEVNULL,
                stdout=log.fileno(),
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def prediction(self) -> Any:
        return _prediction(self._folder / "out")

    def wait_for(self, text: str, count: int) -> None:
        until = time.monotonic() + 200
        while self.output.count(text) < count:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.1)

    def terminate(self) -> None:
        """Send SIGTERM to the launcher."""
        self._machine.run(["pkill", "-TERM", "-o", "-f", "maya.launcher.*--ray"])

    def wait(self) -> int:
        return self.process.wait(240)


def _prediction(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["prediction"]


@contextmanager
def _machines(folder: Path, **options: Any) -> Iterator[RayNamespaces]:
    with RayNamespaces(folder / "machines", 3, processors=8, **options) as machines:
        yield machines
        for machine in machines.machines:
            _check_nothing_is_left(machine)


def _check_nothing_is_left(machine: NamespacedMachine) -> None:
    if not machine.is_running:
        return
    until = time.monotonic() + 60
    while left := [*_processes_of_us(machine), *map(str, machine.tmp.glob("maya-node-*"))]:
        assert time.monotonic() < until, left
        time.sleep(0.5)


def _processes_of_us(machine: NamespacedMachine) -> list[str]:
    return [line for line in machine.command_lines() if any(trace in line for trace in _TRACES_OF_US)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayNamespaces]:
    """One for each test: Ray starts processes late, and keeps some for later jobs."""
    with _machines(tmp_path / "cluster", strangers=1) as machines:
        yield machines


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("ddp.py --steps 3", 24),
        ("fsdp2.py --shards 8 --steps 3", 24),
        (f"train_gpt.py {_SMALL} --tensor 2 --pipeline 4 --micro-batches 4", 24),
        ("checkpoint.py --folder /tmp/checkpoints --steps 2", 24),
        ("ddp.py --steps 3", 96),
    ],
)
def test_predictions_are_those_of_one_machine(cluster: RayNamespaces, program: str, ranks: int) -> None:
    """Both run on the first machine; each machine has its own /tmp."""
    found = []
    for where in (["--ray", "auto"], []):
        out = f"run-{time.monotonic_ns()}"
        options = [*where, "--nproc", str(ranks), "--cluster", "dgx-h100", "--out", f"/tmp/{out}"]
        ended = cluster.run([*_LAUNCHER, *options, *program.split()], folder=str(_EXAMPLES), timeout=400)
        assert ended.returncode == 0, ended.stderr
        found.append(_prediction(cluster.machines[0].tmp / out))
        for machine in cluster.machines:
            shutil.rmtree(machine.tmp / "checkpoints", ignore_errors=True)
    assert found[0] == found[1]


def test_a_stranger_on_the_network_is_not_heard(cluster: RayNamespaces) -> None:
    job = RayJob(cluster, _ENDLESS)
    job.wait_for("has done 20 steps", 6)
    stranger = cluster.machines[-1]
    (stranger.tmp / "stranger.py").write_text(textwrap.dedent(_STRANGER), encoding="utf-8")
    ports = _ports_of_launcher(cluster.machines[0])
    assert len(ports) >= 3  # the link to agents, the ranks' socket, the questions about ranks
    heard = cluster.run([sys.executable, "stranger.py", cluster.machines[0].address, *ports], node=3)
    assert heard.stdout == "not heard\n", heard.stderr
    assert job.process.poll() is None, job.output
    job.terminate()
    assert job.wait() == 1
    assert "got SIGTERM" in job.output


def _ports_of_launcher(machine: NamespacedMachine) -> list[str]:
    """The TCP ports at which the launcher and the coordinator listen, without that of torch's store."""
    listening = machine.run(["ss", "-Hltnp"]).stdout.splitlines()
    found = [line.split() for line in listening if "maya-coord" in line or "node links" in line or "python" in line]
    return sorted({words[3].rpartition(":")[2] for words in found if words[3].startswith(machine.address)})


def test_ten_seconds_without_network_change_nothing(tmp_path: Path) -> None:
    with _machines(tmp_path, fast_detection=False) as machines:
        predictions = []
        for disturbed in (False, True):
            job = RayJob(machines, _MANY)
            job.wait_for("has done 20 steps", 6)
            if disturbed:
                machines.cut_off(2, 10.0)
            assert job.wait() == 0, job.output
            predictions.append(job.prediction)
        assert predictions[0] == predictions[1]


def test_a_machine_without_network_is_lost(tmp_path: Path) -> None:
    with _machines(tmp_path) as machines:
        job = RayJob(machines, _ENDLESS, MAYA_NODE_TIMEOUT="15")
        job.wait_for("has done 20 steps", 6)
        machines.machines[2].cut_off()
        assert job.wait() == 1
        assert "node machine2 is lost, and with it ranks 4-5" in job.output
        _check_nothing_is_left(machines.machines[2])


@pytest.mark.parametrize("killed", [2, 0])
def test_the_loss_of_a_machine_or_of_the_head_ends_the_job(tmp_path: Path, killed: int) -> None:
    with _machines(tmp_path) as machines:
        job = RayJob(machines, _ENDLESS, node=1)
        job.wait_for("has done 20 steps", 6)
        machines.kill(killed)
        assert job.wait() == 1
        assert f"node machine{killed} is lost" in job.output


def test_a_slow_network_does_not_change_a_prediction(cluster: RayNamespaces, tmp_path: Path) -> None:
    fast = RayJob(cluster, _SOME)
    assert fast.wait() == 0, fast.output
    with _machines(tmp_path, delay=5.0) as machines:
        slow = RayJob(machines, _SOME)
        assert slow.wait() == 0, slow.output
        assert slow.prediction == fast.prediction
