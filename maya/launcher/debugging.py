"""`--on-hang pdb`: runs Python's debugger on a hanging rank while all other ranks are stopped.

In: the report of a hang, the ranks, which the coordinator has stopped, and a terminal. Out: sessions
with the debuggers of ranks (rank_runtime/debugger.py), one after the other, until the user quits. Only the debugged
rank runs; it is stopped again before the user chooses the next one.

Nothing here blocks: the attempt waits for the descriptors and the deadline that `Debugging` names.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from maya.launcher.hang import NO_PROGRESS
from maya.nodes.zygotes import Zygotes
from maya.util.ranks import ranks_text

# torch's watchdog aborts ranks whose collectives take ten minutes, and ranks that were stopped for eight.
PATIENCE = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
_ANSWER_SECONDS = 10.0
_INPUT, _OUTPUT = 0, 1


def blamed(report: Mapping[str, Any]) -> int | None:
    """The rank to debug first: one that others wait for; in a mismatch, a rank with the rarest call."""
    groups = [group for group in report["groups"] if group["state"] != "ended"]
    posted = [group for group in groups if group["state"] == "posted"]
    if posted:
        rarest: int = min(posted, key=lambda group: len(group["ranks"]))["ranks"][0]
        return rarest
    alive = {rank for group in groups for rank in group["ranks"]}
    missing = [rank for group in groups for rank in group["missing"] if rank in alive]
    return next(iter([*missing, *(rank for group in groups for rank in group["ranks"])]), None)


class Debugging:
    """Debugging sessions on the terminal, after a hang."""

    def __init__(
        self,
        report: Mapping[str, Any],
        zygotes: Zygotes,
        endpoint: str,
        processes: Mapping[int, int],
        say: Callable[[str], None],
    ) -> None:
        """`processes`: the process ids of ranks that have not ended; the caller keeps it up to date."""
        self._zygotes = zygotes
        self._nodes: Mapping[str, list[int]] = report.get("nodes", {})
        self._endpoint = endpoint
        self._processes = processes
        self._say = say
        self._rank = blamed(report)  # the debugged rank, or the one to propose
        self._may_go_on = report["kind"] == NO_PROGRESS
        self._connection: socket.socket | None = None
        self._answered = False
        self.deadline: float | None = None  # when to call turn() although nothing can be read
        self.is_over = False
        self.goes_on = False  # the user continues the job

    def begin(self, rank: int | None) -> None:
        """Start with the rank chosen on the command line, or ask for one."""
        if rank is None:
            self._ask()
        else:
            self._attach(rank)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to wait for."""
        if self.is_over:
            return []
        return [_INPUT] if self._connection is None else [_INPUT, self._connection.fileno()]

    def turn(self, ready: list[int]) -> None:
        """Handle readable descriptors, and a deadline that has passed."""
        if self._connection is not None and self._connection.fileno() in ready:
            self._on_output()
        if not self.is_over and _INPUT in ready:
            self._on_input(_read())
        if self.deadline is not None and time.monotonic() > self.deadline:
            node = next((node for node, ranks in self._nodes.items() if self._rank in ranks), "")
            self._say(
                f"the debugger of rank {self._rank} does not answer: one of its threads holds the GIL; "
                f"py-spy dump --pid {self._processes.get(self._rank or 0)}{' on ' if node else ''}{node} may show more"
            )
            self._detach()
            self._ask()

    def close(self) -> None:
        """End the session, because the job ends."""
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

    def _on_input(self, content: bytes) -> None:
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
            self._say(f"rank {rank} does not exist or has ended; running: {ranks_text(sorted(self._processes))}")
            self._ask()
            return
        self._rank = rank
        self._connection = self._zygotes.attach(rank, self._processes[rank], self._endpoint)
        if self._connection is None:
            self._say(f"rank {rank} has no debugger: its process does not listen")
            self._detach()
            self._ask()
            return
        self._answered = False
        self.deadline = time.monotonic() + _ANSWER_SECONDS

    def _on_output(self) -> None:
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
            self._say(f"rank {self._rank} has no debugger: its Python interpreter does not run")
        else:
            _write(b"\n")
        self._detach()
        self._ask()

    def _detach(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.deadline = None
        if self._rank is not None and self._rank in self._processes:
            self._zygotes.detach(self._rank, self._processes[self._rank])


def _read() -> bytes:
    """Input of the user; empty at the end of input: Ctrl-D, or the terminal is gone."""
    try:
        return os.read(_INPUT, 4096)
    except OSError:
        return b""


def _write(content: bytes) -> None:
    with suppress(OSError):  # the terminal is gone
        while content:
            content = content[os.write(_OUTPUT, content) :]
