"""The socket of a session: a server that numbers processes as they connect, and notices when they end.

In: as in server.py; and the ends of processes, which are children of others, through process descriptors. Out: as in
server.py; and facts about processes, for the launcher.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from coordinator.answers import INVALID_USAGE, Outgoing
from coordinator.server import Server
from coordinator.session.session_state import SessionState
from coordinator.time_model import RunTimeModel
from rank_runtime.messages import Failed, Hello

_MOST_PROCESSES = 1 << 20


class SessionServer(Server):
    """A ROUTER for all processes of a session."""

    state: SessionState

    def __init__(self, secret: str, endpoint: str, times: RunTimeModel | None, gpus_per_node: int) -> None:
        super().__init__(_MOST_PROCESSES, secret, endpoint)
        self.state = SessionState(times, gpus_per_node)
        self.pids: list[int] = []  # process id of each process
        self.commands: list[list[str]] = []  # its command line, and its parent's
        self.began: list[float] = []  # when it connected, by the monotonic clock
        self.running: dict[int, int] = {}  # descriptor -> process
        self.mismatches: list[tuple[int, Failed]] = []  # of processes, which stay in these calls

    def _rank_of(self, hello: Hello) -> int:
        """A new number: the rank of the Hello means nothing."""
        number = len(self.pids)
        self.pids.append(hello.process)
        self.commands.append(_command_lines(hello.process))
        self.began.append(time.monotonic())
        with suppress(OSError):  # it has ended already; the socket shows that as well
            self.running[os.pidfd_open(hello.process)] = number
        return number

    def _put(self, answers: list[Outgoing]) -> None:
        """Hold what tells ranks that their calls do not match, as on GPUs, where such calls never end. The job's
        watcher reports it; a job that has none yet gets the answer."""
        passed = []
        for process, message, payload in answers:
            if isinstance(message, Failed) and message.result == INVALID_USAGE and self._is_watched(process):
                self.mismatches.append((process, message))
            else:
                passed.append((process, message, payload))
        super()._put(passed)

    def _is_watched(self, process: int) -> bool:
        place = self.state.placing.place_of(process)
        return place is not None and place[0].is_complete

    def process_ended(self, descriptor: int) -> None:
        """A descriptor of `running` has become readable."""
        number = self.running.pop(descriptor)
        os.close(descriptor)
        self.exited(number)

    def close(self) -> None:
        for descriptor in self.running:
            os.close(descriptor)
        super().close()


def _command_lines(pid: int) -> list[str]:
    """The words of a process's command line, and of its parent's: a process of multiprocessing does not name the
    script itself."""
    words: list[str] = []
    with suppress(OSError):
        folder = Path("/proc", str(pid))
        parent = re.search(r"^PPid:\s*(\d+)", (folder / "status").read_text(encoding="utf-8"), re.MULTILINE)
        folders = [folder, *([Path("/proc", parent[1])] if parent is not None else [])]
        for each in folders:
            words += filter(None, (each / "cmdline").read_bytes().decode(errors="replace").split("\0"))
    return words
