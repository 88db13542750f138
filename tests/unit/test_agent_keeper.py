"""The process that keeps a node agent: a copy of the job's folder for it, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from maya.nodes.job_nodes import NodesError
from maya.nodes.ray_cluster import RayNodes

# Says where it is, and waits for the end of its standard input; then it leaves a file in FOUND.
AGENT = """
import os, sys, time
from pathlib import Path

Path("written").touch()
print(os.getpid(), os.getcwd(), sorted(os.listdir()), os.environ.get("PYTHONPATH"), flush=True)
first = sys.stdin.readline()
if first == "fail\\n":
    sys.exit(3)
sys.stdin.read()
time.sleep(0.3)
Path(os.environ["FOUND"]).touch()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    (job / "agent.py").write_text(AGENT)
    (tmp_path / "temporary").mkdir()
    return job


def keep(folder: Path, copy: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TMPDIR": str(folder.parent / "temporary"),
        "FOUND": str(folder.parent / "found"),
        "PYTHONPATH": f"{folder}/lib:/other",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "maya.nodes.agent_keeper", folder, copy, sys.executable, "agent.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_agent_works_in_a_copy_that_is_removed(folder: Path) -> None:
    temporary = folder.parent / "temporary"
    with keep(folder, "maya-folder-1/job") as process:
        copy = temporary / "maya-folder-1" / "job"
        _, said = first_line(process).split(" ", 1)
        assert said == f"{copy} ['agent.py', 'written'] {copy}/lib:/other\n"
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []
    assert not (folder / "written").exists()


def test_two_agents_on_one_machine_have_copies_of_their_own(folder: Path) -> None:
    with keep(folder, "maya-folder-1/job") as one, keep(folder, "maya-folder-1/job") as other:
        assert first_line(one).split()[1] != first_line(other).split()[1]
    assert list((folder.parent / "temporary").iterdir()) == []


def test_without_a_copy_the_agent_works_in_the_folder(folder: Path) -> None:
    with keep(folder, "") as process:
        assert first_line(process).split()[1] == str(folder)
    assert (folder / "written").exists()


def test_the_exit_code_is_the_agents(folder: Path) -> None:
    with keep(folder, "") as process:
        process.communicate("fail\n")
    assert process.returncode == 3


def test_the_agent_may_end_in_order_when_its_parent_is_killed(folder: Path) -> None:
    """As Ray kills the children of a worker that ends: the one that it knows, at once."""
    with keep(folder, "maya-folder-1/job") as process:
        agent = psutil.Process(int(first_line(process).split()[0]))
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while not (folder.parent / "found").exists() or list((folder.parent / "temporary").iterdir()):
        assert time.monotonic() < until
        time.sleep(0.05)
    psutil.wait_procs([agent], timeout=20)


def test_the_agent_ends_with_its_keeper(folder: Path) -> None:
    with keep(folder, "") as process:
        agent = psutil.Process(int(first_line(process).split()[0]))
        keeper = agent.parent()
        assert keeper is not None
        keeper.kill()
        assert psutil.wait_procs([agent], timeout=20)[1] == []
        assert process.wait(20) == 128 + signal.SIGKILL


def test_a_missing_ray_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        NodesError, match=r"--ray needs ray, which is not installed: pip install 'maya-torchrun\[ray\]'"
    ):
        RayNodes("auto")
