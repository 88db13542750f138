"""`--on-hang pdb`: Python's debugger on a rank that hangs, while all others stand still.

In: the report of a hang, the processes of the ranks, which the coordinator has stopped, and a terminal. Out: sessions
with the debuggers of ranks (rank_runtime/debugger.py), one after the other, until the user has seen enough. Only the
rank that is looked at runs; it is stopped again before the next one is asked for.

This takes no time of its own: the attempt waits for the descriptors and the deadline that are named here.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from maya.launcher.hang import NO_PROGRESS
from maya.util.ranks import ranks_text
from rank_runtime import introspection

_PROGRAM = Path(__file__).parents[2] / "rank_runtime" / "debugger.py"
# torch's watchdog ends ranks whose collectives take ten minutes, and those that were stopped for eight.
PATIENCE = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
_ANSWER_SECONDS = 10.0
_INPUT, _OUTPUT = 0, 1


def blamed(report: Mapping[str, Any]) -> int | None:
    """The rank to look at first: one that others wait for; of calls that do not match, who made the rarest."""
    groups = [group for group in report["groups"] if group["state"] != "ended"]
    posted = [group for group in groups if group["state"] == "posted"]
    if posted:
        rarest: int = min(posted, key=lambda group: len(group["ranks"]))["ranks"][0]
        return rarest
    alive = {rank for group in groups for rank in group["ranks"]}
    missing = [rank for group in groups for rank in group["missing"] if rank in alive]
    return next(iter([*missing, *(rank for group in groups for rank in group["ranks"])]), None)


class Debugging:
    """Sessions on the terminal, after a hang."""

    def __init__(
        self, report: Mapping[str, Any], endpoint: str, processes: Mapping[int, int], say: Callable[[str], None]
    ) -> None:
        """`processes`: those of the ranks that have not ended, kept up to date."""
        self._endpoint = endpoint
        self._processes = processes
        self._say = say
        self._rank = blamed(report)  # that is looked at, or proposed
        self._may_go_on = report["kind"] == NO_PROGRESS
        self._connection: socket.socket | None = None
        self._answered = False
        self.deadline: float | None = None  # when to look again, whatever happens
        self.is_over = False
        self.goes_on = False  # the user has seen that it is no hang

    def begin(self, rank: int | None) -> None:
        """With a rank that the user chose before, or by asking for one."""
        if rank is None:
            self._ask()
        else:
            self._attach(rank)

    @property
    def descriptors(self) -> list[int]:
        """To wait for."""
        if self.is_over:
            return []
        return [_INPUT] if self._connection is None else [_INPUT, self._connection.fileno()]

    def turn(self, ready: list[int]) -> None:
        """Something can be read, or the deadline has passed."""
        if self._connection is not None and self._connection.fileno() in ready:
            self._show()
        if not self.is_over and _INPUT in ready:
            self._typed(_read())
        if self.deadline is not None and time.monotonic() > self.deadline:
            self._say(
                f"the debugger of rank {self._rank} does not answer: some thread of it keeps Python's lock; "
                f"py-spy dump --pid {self._processes.get(self._rank or 0)} may show more"
            )
            self._detach()
            self._ask()

    def close(self) -> None:
        """What is left of it, when the job ends."""
        self.is_over = True
        self.deadline = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- the terminal ----

    def _ask(self) -> None:
        if not self._processes:
            self.is_over = True
            return
        if self._rank not in self._processes:
            self._rank = min(self._processes)
        choices = "rank to debug, c to go on, or q" if self._may_go_on else "rank to debug, or q"
        _write(f"{choices} to end the job [{self._rank}]: ".encode())

    def _typed(self, content: bytes) -> None:
        if self._connection is not None:
            with suppress(OSError):
                if content:
                    self._connection.sendall(content)
                else:  # Ctrl-D
                    self._connection.shutdown(socket.SHUT_WR)
            return
        answer = content.decode(errors="replace").strip()
        if not content or answer in ("q", "quit", "exit"):
            self.is_over = True
        elif self._may_go_on and answer in ("c", "continue"):
            self.is_over = self.goes_on = True
        elif not answer:
            assert self._rank is not None
            self._attach(self._rank)
        elif answer.isdigit():
            self._attach(int(answer))
        else:
            self._say(f"{answer!r} is not the number of a rank")
            self._ask()

    # ---- the rank ----

    def _attach(self, rank: int) -> None:
        if rank not in self._processes:
            self._say(f"there is no rank {rank}, or not any more; there are {ranks_text(sorted(self._processes))}")
            self._ask()
            return
        self._rank = rank
        self._send(signal.SIGCONT)
        question = f"debug {os.fsencode(_PROGRAM).hex()}"
        self._connection = introspection.connect(self._endpoint, self._processes[rank], question)
        if self._connection is None:
            self._say(f"rank {rank} has no debugger: its process does not listen")
            self._detach()
            self._ask()
            return
        self._connection.setblocking(True)
        self._answered = False
        self.deadline = time.monotonic() + _ANSWER_SECONDS

    def _show(self) -> None:
        assert self._connection is not None
        try:
            content = self._connection.recv(1 << 16)
        except OSError:
            content = b""
        self.deadline = None
        if content:
            self._answered = True
            _write(content)
            return
        if not self._answered:
            self._say(f"rank {self._rank} has no debugger: its Python does not run, or not any more")
        else:
            _write(b"\n")
        self._detach()
        self._ask()

    def _detach(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.deadline = None
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        process = self._processes.get(-1 if self._rank is None else self._rank)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process, number)


def _read() -> bytes:
    """Nothing: the end, by Ctrl-D or because the terminal is gone."""
    try:
        return os.read(_INPUT, 4096)
    except OSError:
        return b""


def _write(content: bytes) -> None:
    with suppress(OSError):  # the terminal is gone
        while content:
            content = content[os.write(_OUTPUT, content) :]
