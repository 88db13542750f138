"""Agents on the machines of a Ray cluster: three machines in namespaces of their own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.ray_namespaces import NamespacedMachine, RayNamespaces, missing

_WHY_NOT = missing()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

# Says what it sees, and stays until the end of its standard input, unless it is told to fail.
AGENT = """
import json, os, sys
from pathlib import Path
import extra

settings = json.loads(sys.stdin.readline())
if settings.get("fails"):
    print("the disk is on fire", file=sys.stderr)
    sys.exit(3)
seen = {"settings": settings, "folder": os.getcwd(), "files": sorted(os.listdir()), "host": os.uname().nodename}
Path("written").touch()
Path("/tmp/begun.new").write_text(json.dumps(seen))
Path("/tmp/begun.new").rename("/tmp/begun")
sys.stdin.read()
Path("/tmp/ended").touch()
"""
# ADDRESS WHAT [key]. Lines of JSON: the nodes, then the agents that have ended.
DRIVER = """
import json, os, sys, time
from maya.nodes.job_folder import choose_folder
from maya.nodes.job_nodes import NodesError
from maya.nodes.ray_cluster import RayNodes

address, what, *rest = sys.argv[1:]
folder = choose_folder("train.py", is_module=False, environment=os.environ)
resources = {"big_memory": 1.0} if what == "resources" else {}
key = sys.stdin.readline().strip() if what in ("until end", "forever") else ""
try:
    with RayNodes(address, folder, resources, agent=["job_agent.py"]) as nodes:
        seen = [each.as_fields() for each in nodes.nodes()]
        print(json.dumps({"nodes": seen, "copied": nodes.copied_to(), "address": nodes.address}), flush=True)
        if what in ("look", "resources"):
            sys.exit()
        last = nodes.nodes()[-1].name
        nodes.start({each.name: {"key": key, "fails": what == "fails" and each.name == last} for each in nodes.nodes()})
        print(json.dumps({"started": True}), flush=True)
        if what == "until end":
            sys.stdin.read()
        while what != "until end" and not nodes.ended():
            time.sleep(0.1)
        print(json.dumps(nodes.ended()), flush=True)
except NodesError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayNamespaces]:
    """One for each test: Ray starts processes late, and keeps some for later jobs."""
    with RayNamespaces(tmp_path / "machines", 3, strangers=1, resources={1: '{"big_memory": 2}'}) as machines:
        yield machines


@pytest.fixture
def job(cluster: RayNamespaces) -> Iterator[Path]:
    """A job's folder on the first machine only."""
    folder = cluster.machines[0].tmp / "job"
    make_job(folder)
    yield folder
    shutil.rmtree(folder)
    for machine in cluster.machines:
        for name in ("begun", "ended"):
            (machine.tmp / name).unlink(missing_ok=True)


def make_job(folder: Path) -> None:
    (folder / "modules").mkdir(parents=True)
    (folder / "maya-runs").mkdir()
    (folder / "maya-runs" / "large").touch()
    (folder / "modules" / "extra.py").touch()
    (folder / "train.py").touch()
    (folder / "job_agent.py").write_text(AGENT)
    (folder / "job_driver.py").write_text(DRIVER)


def drive(
    cluster: RayNamespaces, what: str, node: int = 0, folder: str = "/tmp/job", address: str = ""
) -> subprocess.Popen[str]:
    """Begin the driver; its nodes are in place when it says so."""
    return cluster.machines[node].start(
        [sys.executable, "job_driver.py", address or cluster.address, what],
        {"PYTHONPATH": f"{folder}/modules"},
        folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output_of(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == ""
    return [json.loads(line) for line in output.splitlines()]


def wait_for(machine: NamespacedMachine, name: str) -> None:
    until = time.monotonic() + 120
    while not (machine.tmp / name).exists():
        assert time.monotonic() < until, f"{machine.name}: {name}"
        time.sleep(0.05)


def left_on(machine: NamespacedMachine) -> list[str]:
    """Agents, drivers and copies of a job's folder."""
    names = ("job_agent.py", "agent_keeper", "ray_driver", "job_driver.py")
    processes = [line for line in machine.command_lines() if any(name in line for name in names)]
    return [*processes, *map(str, machine.tmp.glob("maya-*"))]


def wait_until_clean(machine: NamespacedMachine) -> None:
    until = time.monotonic() + 30
    while left := left_on(machine):
        assert time.monotonic() < until, left
        time.sleep(0.2)


def until_begun(process: subprocess.Popen[str], cluster: RayNamespaces, key: str = "key") -> dict[str, object]:
    """Give the driver its key, and wait until all agents run; what the driver says of the nodes."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{key}\n")
    process.stdin.flush()
    found: dict[str, object] = json.loads(process.stdout.readline())
    assert json.loads(process.stdout.readline()) == {"started": True}
    for machine in cluster.machines[:3]:
        wait_for(machine, "begun")
    return found


def test_agents_run_in_the_jobs_folder_on_every_node(cluster: RayNamespaces, job: Path) -> None:
    key = secrets.token_hex(20)
    with drive(cluster, "until end") as process:
        found = until_begun(process, cluster, key)
        (ended,) = output_of(process)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert [each["name"] for each in nodes] == ["machine0", "machine1", "machine2"]
    assert [each["address"] for each in nodes] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert found["address"] == "10.77.0.1"
    assert {each["interface"] for each in nodes} == {"eth0"}
    assert all(each["memory"] > 2**30 and each["maya"] and each["torch"] and each["compiler"] for each in nodes)
    assert found["copied"] == ["machine1", "machine2"]
    assert ended == {}
    for machine in cluster.machines[:3]:
        seen = json.loads((machine.tmp / "begun").read_text())
        assert (seen["host"], seen["settings"]["key"]) == (machine.name, key)
        assert Path(seen["folder"]).name == "job"
        assert {"job_agent.py", "modules", "train.py"} <= set(seen["files"])
        assert ("maya-runs" in seen["files"]) == (machine.number == 0)
        assert (machine.tmp / "ended").exists()
        assert left_on(machine) == []
        (machine.tmp / "begun").unlink()
        holding = subprocess.run(["grep", "-rlF", key, machine.tmp], stdout=subprocess.PIPE, text=True)
        assert holding.stdout == ""
    assert (job / "written").exists()


def test_an_agent_that_ends_is_named_with_its_last_line(cluster: RayNamespaces, job: Path) -> None:
    with drive(cluster, "fails") as process:
        *_, ended = output_of(process)
    assert ended == {"machine2": "its agent ended with exit code 3: the disk is on fire"}
    assert [left_on(machine) for machine in cluster.machines[:3]] == [[], [], []]


@pytest.mark.slow
def test_a_folder_that_nodes_share_is_not_copied(cluster: RayNamespaces, job: Path) -> None:
    shared = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        make_job(shared / "job")
        with drive(cluster, "until end", folder=str(shared / "job")) as process:
            found = until_begun(process, cluster, "key")
            output_of(process)
        assert found["copied"] == []
        for machine in cluster.machines[:3]:
            assert json.loads((machine.tmp / "begun").read_text())["folder"] == str(shared / "job")
    finally:
        shutil.rmtree(shared)


@pytest.mark.slow
def test_only_nodes_with_the_resources_are_used(cluster: RayNamespaces, job: Path) -> None:
    with drive(cluster, "resources") as process:
        (found,) = output_of(process)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert [each["name"] for each in nodes] == ["machine1"]


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing(cluster: RayNamespaces, job: Path) -> None:
    with drive(cluster, "forever") as process:
        until_begun(process, cluster)
        os.killpg(process.pid, signal.SIGKILL)
    for machine in cluster.machines[:3]:
        wait_for(machine, "ended")
        wait_until_clean(machine)


@pytest.mark.slow
def test_a_wrong_address_is_said_at_once(cluster: RayNamespaces, job: Path) -> None:
    with drive(cluster, "look", address="10.77.0.2:6379") as process:
        _, errors = process.communicate(timeout=120)
    assert errors == "--ray 10.77.0.2:6379: no Ray cluster answers there (Connection refused)\n"


@pytest.mark.slow
def test_a_machine_outside_the_cluster_is_told_to_join(cluster: RayNamespaces, job: Path) -> None:
    outside = cluster.machines[3]
    shutil.copytree(job, outside.tmp / "job")
    with drive(cluster, "look", node=3) as process:
        _, errors = process.communicate(timeout=120)
    assert "this machine is not a node of a Ray cluster; join it" in errors


@pytest.mark.slow
def test_a_machine_without_power_is_lost_by_name(cluster: RayNamespaces, job: Path) -> None:
    """The last test: the machine stays lost."""
    with drive(cluster, "forever") as process:
        until_begun(process, cluster)
        cluster.kill(2)
        (ended,) = output_of(process)
    assert ended == {"machine2": "Ray has lost this machine: health check failed due to missing too many heartbeats"}
    for machine in cluster.machines[:2]:
        wait_until_clean(machine)
