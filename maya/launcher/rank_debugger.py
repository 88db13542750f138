"""Starts Python's debugger in a stopped rank of this machine, and stops the rank again after it.

In: the rank's process, and the coordinator's endpoint as the rank knows it. Out: a connected socket of the debugger
(rank_runtime/debugger.py).
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from rank_runtime import introspection

_PROGRAM = Path(__file__).parents[2] / "rank_runtime" / "debugger.py"


def attach(process: int, endpoint: str) -> socket.socket | None:
    """Let the rank run, and start the debugger. None: the process does not listen."""
    _send(process, signal.SIGCONT)
    connection = introspection.connect(endpoint, process, f"run {os.fsencode(_PROGRAM).hex()}")
    if connection is not None:
        connection.setblocking(True)
    return connection


def stop(process: int) -> None:
    _send(process, signal.SIGSTOP)


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process, number)
