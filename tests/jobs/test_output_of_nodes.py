"""Files and console output of ranks on other machines: as if all had run on this one, and while the job runs.

The machines are node agents on this one (tests/helpers/local_agents.py).
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import local_agents
from helpers.marked_processes import processes_with

from maya.trace import read

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts a job of four ranks on two nodes, in the test's folder."""
    launchers: list[subprocess.Popen[bytes]] = []
    nodes = tmp_path / "nodes"
    nodes.mkdir()

    def begin(script: str, *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        words = [local_agents.__file__, "2", "--out", "run", "--nproc", "4", *options, "train.py"]
        environment = {**os.environ, "MAYA_TEST_NODES": str(nodes), "PYTHONPATH": str(Path(__file__).parents[2])}
        launchers.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=tmp_path,
                env=environment,
                stdout=stdout,
                stderr=subprocess.PIPE,
                bufsize=0,  # communicate() does not see what a buffer holds
            )
        )
        return launchers[-1]

    yield begin
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.kill()
        launcher.communicate()
    wait_until(lambda: not processes_with(f"MAYA_TEST_NODES={nodes}"))


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


TRAIN = """
    import os, pathlib, time, torch
    x = torch.ones(1000, device="cuda").sum().item()
    print("begins", flush=True)
    os.write(2, b"warns\\n")
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    print("ends")
"""


def test_logs_and_traces_arrive_while_the_job_runs(launch: Launch, tmp_path: Path) -> None:
    """At its end, the run's folder is complete."""
    launcher = launch(TRAIN, "--tee", "3")
    assert launcher.stdout is not None
    begun = {launcher.stdout.readline() for _ in range(4)}
    assert begun == {b"[default%d]:begins\n" % rank for rank in range(4)}
    run = tmp_path / "run"
    wait_until(lambda: len(list(run.glob("logs/*/attempt_0/*/stderr.log"))) == 4)
    wait_until(lambda: len(list(run.glob("rank*.trace"))) == 4)
    (tmp_path / "go").touch()
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors.decode()
    assert sorted(output.splitlines()) == [b"[default%d]:ends" % rank for rank in range(4)]
    for rank in range(4):
        assert read(run / f"rank{rank}.trace").complete
        (folder,) = run.glob(f"logs/*/attempt_0/{rank}")
        assert (folder / "stdout.log").read_text() == "begins\nends\n"
        assert (folder / "stderr.log").read_text() == "warns\n"
        assert f"[default{rank}]:warns" in errors.decode()


def test_lines_reach_a_terminal_at_once(launch: Launch, tmp_path: Path) -> None:
    """The ranks see a terminal, so Python does not collect lines."""
    outside, inside = pty.openpty()
    launcher = launch(TRAIN.replace(", flush=True", ""), stdout=inside)
    os.close(inside)
    output = b""
    while output.count(b"begins\r\n") < 4:
        output += os.read(outside, 4096)
    (tmp_path / "go").touch()
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors.decode()
    assert os.read(outside, 4096).count(b"ends\r\n") == 4
    os.close(outside)


def test_a_slow_reader_gets_all_output_in_whole_lines(launch: Launch) -> None:
    """It is more than nodes and launcher hold, so the ranks wait for the reader."""
    lines, length = 3000, 4000
    script = f"""
        import os
        line = os.environ["RANK"].encode() * {length - 1} + b"\\n"
        for _ in range({lines}):
            os.write(1, line)
    """
    launcher = launch(script, "--no-preload")
    assert launcher.stdout is not None
    output = launcher.stdout.read(length)
    time.sleep(1)
    rest, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors.decode()
    found = (output + rest).splitlines()
    assert {line: found.count(line) for line in set(found)} == {b"%d" % rank * (length - 1): lines for rank in range(4)}


def test_ranks_notice_that_nobody_reads_their_output(launch: Launch) -> None:
    """maya-torchrun | head: the same as on one machine."""
    launcher = launch("import os\nwhile True: os.write(1, b'line\\n')", "--no-preload")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"line\n"
    launcher.stdout.close()
    assert launcher.wait(120) == 1
    assert launcher.stderr is not None
    assert b"BrokenPipeError" in launcher.stderr.read()
