"""Correct programs that wait for something outside: one warning, the job goes on and ends well."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.hang_launch import ROOT, SCRIPTS, HangRun

from rank_runtime.build import Build

SOCKET = ("socket", "thread", "workers", "outstanding", "collective thread", "gloo")
PIPE = ("pipe", "child")
QUICK = ("outstanding", "collective thread")


@contextmanager
def outside(kind: str, path: Path) -> Iterator[None]:
    """What the program waits for comes at the end."""
    if kind in SOCKET:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            yield
            connection, _ = server.accept()
            connection.sendall(b"!")
            connection.close()
    elif kind in PIPE:
        os.mkfifo(path)
        descriptor = os.open(path, os.O_RDWR)
        yield
        os.write(descriptor, b"!")
        os.close(descriptor)
    elif kind == "lock":
        with path.open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    else:
        yield
        path.touch()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow])
        for kind in (*SOCKET, *PIPE, "lock", "heartbeat")
    ],
)
def test_a_program_that_waits_outside_gets_one_warning_and_goes_on(kind: str, build: Build, tmp_path: Path) -> None:
    folder, path = tmp_path / "out", tmp_path / "awaited"
    options = ["--nproc", "2", "--out", str(folder), "--no-trace", "--hang-after", "2"]
    script = [str(SCRIPTS / "correct" / "waits_outside.py"), kind, str(path)]
    command = [sys.executable, "-m", "maya.launcher", *options, *script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        with outside(kind, path):
            while not (folder / "no_progress.json").exists() and process.poll() is None:
                time.sleep(0.1)
            assert process.poll() is None, process.communicate()[0]
        output, _ = process.communicate(timeout=150)
    run = HangRun(process.returncode, output, folder)
    assert run.exit_code == 0, output
    assert output.count("maya-torchrun: warning: no progress") == 1
    assert "never" not in output
    assert run.report is None
    assert run.suspicion is not None
    assert run.suspicion["resolved"]
    assert run.suspicion["ranks"]["stuck"] == []
    assert [pause["resumed"] for pause in run.summary["emulation"]["pauses"]] == [True]
