"""Commands whose standard streams are closed, full, broken pipes or terminals that are gone; and a launcher that fails.

Output is best effort, the job is not: it runs to its end, and nothing of it is left behind however the launcher ends.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.marked_processes import processes_with
from helpers.standard_streams import broken_pipe, close_standard_streams

from maya.trace import read
from rank_runtime.build import Build

LAUNCH = "from maya.launcher import main; raise SystemExit(main())"
TRAIN = """
    import os, torch
    print("to stdout")
    torch.ones(1000, device="cuda").sum().item()
    os.write(2, b"to stderr\\n")
"""
WAIT = """
    import os, pathlib, time
    pathlib.Path("started").touch()
    time.sleep(600)
"""

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(build: Build, tmp_path: Path) -> Iterator[Launch]:
    """Starts a launcher in the test's folder, and looks for processes when it has ended."""
    mark = f"MAYA_TEST_MARK={uuid.uuid4().hex}"
    launchers: list[subprocess.Popen[bytes]] = []

    def begin(script: str, *options: str, program: str = LAUNCH, **streams: Any) -> subprocess.Popen[bytes]:
        (tmp_path / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
        command = [sys.executable, "-c", program, "--out", "run", *options, "train.py"]
        environment = {**os.environ, **dict([mark.split("=")])}
        launchers.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **streams))
        return launchers[-1]

    yield begin
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.kill()
        launcher.communicate()
    deadline = time.monotonic() + 10
    while left := processes_with(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def check_run(folder: Path, ranks: int) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["exit_code"] == 0
    assert summary["prediction"] is not None
    for rank in range(ranks):
        assert read(folder / f"rank{rank}.trace").complete


# ---- maya-torchrun ----


def test_a_job_runs_with_all_streams_closed(launch: Launch, tmp_path: Path) -> None:
    """No other file takes their numbers, and what is printed goes into none."""
    launcher = launch(TRAIN, preexec_fn=close_standard_streams)
    assert launcher.wait(120) == 0
    check_run(tmp_path / "run", 1)
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"to std" not in file.read_bytes()


def test_a_job_runs_when_its_output_cannot_be_written(launch: Launch, tmp_path: Path) -> None:
    """What the launcher passes on is lost, the logs are not."""
    with broken_pipe() as pipe, Path("/dev/full").open("wb") as full:
        launcher = launch(TRAIN, "--nproc", "2", "--tee", "3", stdout=pipe, stderr=full)
        assert launcher.wait(120) == 0
    check_run(tmp_path / "run", 2)
    for log, text in (("stdout.log", "to stdout\n"), ("stderr.log", "to stderr\n")):
        files = list((tmp_path / "run" / "logs").rglob(log))
        assert len(files) == 2
        assert all(text in file.read_text() for file in files)


def test_a_job_runs_when_its_terminal_is_gone(launch: Launch, tmp_path: Path) -> None:
    """As for a job that was started with nohup: otherwise SIGHUP ends it."""
    outside, inside = pty.openpty()
    launcher = launch("print('to stdout')", "--redirects", "3", stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    os.close(outside)
    assert launcher.wait(120) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == 0


def test_a_wrong_command_line_fails_even_if_it_cannot_be_reported(launch: Launch) -> None:
    with Path("/dev/full").open("wb") as full:
        assert launch("", "--no-such-option", stdout=full, stderr=full).wait(60) == 2


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("attempt.Attempt.run", "MemoryError"),  # the zygote has just been started
        ("attempt.Attempt._on_exit", "BrokenPipeError"),  # the first rank has ended, the second one sleeps
    ],
)
def test_a_launcher_that_fails_stops_its_ranks(launch: Launch, where: str, error: str) -> None:
    """It says so, and takes everything along that it has started."""
    module, function = where.split(".", 1)
    program = f"""if True:
        from maya.launcher import {module}
        def fail(*_):
            raise {error}("injected")
        {module}.{function} = fail
        {LAUNCH}
    """
    script = "import os, time; time.sleep(0 if os.environ['RANK'] == '0' else 600)"
    words = ("--nproc", "2", "--no-preload")
    launcher = launch(script, *words, program=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert output == b""
    assert f"{error}: injected" in errors.decode()


def test_an_unhandled_sigint_stops_the_job(launch: Launch, tmp_path: Path) -> None:
    """Python raises KeyboardInterrupt wherever the launcher is."""
    launcher = launch(WAIT, "--signals-to-handle", "SIGTERM", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert errors.decode().endswith("maya-torchrun: interrupted\n")


def test_the_zygote_ends_if_its_launcher_has_gone_before_it_began(launch: Launch) -> None:
    """A zygote notices that its launcher is gone even if it never saw it."""
    program = f"""if True:
        import os
        from maya.launcher import zygote_process
        begin = zygote_process.ZygoteProcess.__enter__
        zygote_process.ZygoteProcess.__enter__ = lambda self: os._exit(3)
        {LAUNCH}
    """
    assert launch(WAIT, "--nproc", "2", program=program).wait(60) == 3
