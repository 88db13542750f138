"""A launcher on a terminal, for `--on-hang pdb`."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from helpers import local_agents
from helpers.hang_launch import ROOT, SCRIPTS


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
def on_terminal(
    folder: Path, script: str, ranks: int, action: str, *options: str, nodes: int = 0
) -> Iterator[Terminal]:
    """A job whose processes can be told from others: its script lies in the folder. `nodes`: of node agents."""
    if nodes:
        (folder / "nodes").mkdir()
    shutil.copy(SCRIPTS / f"{script}.py", folder)
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", "--on-hang", action, *options]
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        launcher = [local_agents.__file__, str(nodes)] if nodes else ["-m", "maya.launcher"]
        command = [sys.executable, *launcher, *words, str(folder / f"{script}.py")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MAYA_TEST_NODES": str(folder / "nodes")}
        os.execve(command[0], command, environment if nodes else os.environ)
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
