"""`--on-hang pdb`: a session on a terminal with a job that hangs."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from helpers.hang_launch import ROOT, SCRIPTS

from rank_runtime.build import Build


class Terminal:
    """A launcher on a terminal of its own."""

    def __init__(self, process: int, descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self.shown = ""

    def until(self, text: str) -> str:
        """What appears up to a text."""
        begin, deadline = len(self.shown), time.monotonic() + 120
        while text not in self.shown[begin:]:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), f"{text!r} is not in {self.shown}"
        return self.shown[begin:]

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def exit_code(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 120)[0]:
            return False
        try:
            content = os.read(self._descriptor, 4096)
        except OSError:  # the other end is closed
            content = b""
        self.shown += content.decode(errors="replace")
        return bool(content)


@contextmanager
def on_terminal(folder: Path, script: str, ranks: int, action: str, *options: str) -> Iterator[Terminal]:
    """A job whose processes can be told from others: its script lies in the folder."""
    shutil.copy(SCRIPTS / f"{script}.py", folder)
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", "--on-hang", action, *options]
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        command = [sys.executable, "-m", "maya.launcher", *words, str(folder / f"{script}.py")]
        os.execv(command[0], command)
    try:
        yield Terminal(process, descriptor)
    finally:
        os.close(descriptor)
        with suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(process, os.WNOHANG) == (0, 0):
                os.kill(process, signal.SIGTERM)
                os.waitpid(process, 0)


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_a_session_on_two_ranks_ends_quietly(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "conditional_all_reduce", 2, "pdb") as terminal:
        report = terminal.until("rank to debug, or q to end the job [1]: ")
        assert "maya-torchrun: deadlock: 2 of 2 ranks" in report
        terminal.type("\n")
        terminal.until("(Pdb rank 1) ")
        assert "conditional_all_reduce.py(17)main()" in terminal.shown
        terminal.type("p rank, step\n")
        assert "(1, 2)" in terminal.until("(Pdb rank 1) ")
        terminal.type("step\n")
        assert "*** not possible on a hanging rank" in terminal.until("(Pdb rank 1) ")
        terminal.type("down\n")
        assert "site-packages/torch/distributed/" in terminal.until("(Pdb rank 1) ")
        terminal.type("q\n")
        terminal.until("[1]: ")
        terminal.type("0\n")
        terminal.until("(Pdb rank 0) ")
        terminal.type("p loss\n")  # what can never come is an error, and no further hang
        assert "device not ready" in terminal.until("(Pdb rank 0) ")
        terminal.type("\x04")
        terminal.until("[0]: ")
        terminal.type("q\n")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_other_ranks_stand_still_and_ctrl_c_leaves_nothing_behind(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "partial_deadlock", 4, "pdb:2") as terminal:
        terminal.until("(Pdb rank 2) ")
        assert "maya-torchrun: partial deadlock" in terminal.shown
        terminal.type("p __import__('os').getpid()\n")
        ranks = [process for process in processes_of(tmp_path) if os.getsid(process) == process]
        answer = terminal.until("(Pdb rank 2) ")
        debugged = [process for process in ranks if f"\n{process}\r" in answer]
        stopped = [process for process in ranks if state_of(process) == "T"]
        assert len(debugged) == 1
        assert len(stopped) == 3
        assert not set(debugged) & set(stopped)
        terminal.type("\x03")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_ranks_have_not_failed_yet_when_calls_do_not_match(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "mismatched_sizes", 4, "pdb") as terminal:
        terminal.until("rank to debug, or q to end the job [3]: ")
        terminal.type("\n")
        terminal.until("(Pdb rank 3) ")
        terminal.type("p batch.shape\n")
        assert "torch.Size([48])" in terminal.until("(Pdb rank 3) ")
        terminal.type("q\n")
        terminal.until("[3]: ")
        terminal.type("\x04")
        assert terminal.exit_code() == 1
    assert "Traceback" not in terminal.shown


@pytest.mark.slow
def test_sleeping_ranks_go_on_if_the_user_continues(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "asleep", 2, "pdb", "--hang-after", "2") as terminal:
        terminal.until("rank to debug, c to go on, or q to end the job [1]: ")
        assert "maya-torchrun: no progress" in terminal.shown
        assert "rank 1 has not called it yet" in terminal.shown
        terminal.type("\n")
        terminal.until("(Pdb rank 1) ")
        terminal.type("q\n")
        terminal.until("[1]: ")
        terminal.type("c\n")
        terminal.until("maya-torchrun: the ranks go on")
        assert [state_of(process) for process in processes_of(tmp_path) if state_of(process) == "T"] == []
        terminal.type("\x03")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []


def test_without_a_terminal_the_debugger_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for action, expected in (
        ("pdb", "--on-hang pdb needs a terminal as standard input and output"),
        ("pdb:2", "--on-hang pdb:2: the ranks of this job are 0 to 1"),
        ("pdb:x", "'pdb:x' is none of report, abort, wait, pdb and pdb:RANK"),
    ):
        words = ["--nproc", "2", "--out", str(tmp_path / "out"), "--on-hang", action, "none.py"]
        command = [sys.executable, "-m", "maya.launcher", *words]
        ended = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert expected in ended.stderr
        assert not (tmp_path / "out").exists()
