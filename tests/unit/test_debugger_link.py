"""A debugger in a rank of another machine: the bytes of a session, and its end."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.answering_rank import answering_rank

from coordinator.node_agent.debugged_rank import DebuggedRank
from maya.launcher import rank_debugger
from maya.nodes.debugger_link import DebuggerLink

WAITS = "import threading\nlock = threading.Lock(); lock.acquire()\nlock.acquire()\n"


class LinkEnds:
    """A link, and what has left it towards the node."""

    def __init__(self) -> None:
        self.input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.written = 0
        self.link = DebuggerLink(self.input.put, self._count)

    def _count(self, size: int) -> None:
        self.written += size


@pytest.fixture
def ends() -> Iterator[LinkEnds]:
    ends = LinkEnds()
    ends.link.socket.settimeout(20)
    yield ends
    ends.link.socket.close()
    ends.link.close()


def test_input_and_output_pass_in_order(ends: LinkEnds) -> None:
    ends.link.write(b"(Pdb) ")
    assert ends.link.socket.recv(100) == b"(Pdb) "
    ends.link.socket.sendall(b"where\n")
    assert ends.input.get(timeout=20) == b"where\n"


def test_the_end_of_the_input_is_passed_on_and_output_still_arrives(ends: LinkEnds) -> None:
    ends.link.socket.shutdown(socket.SHUT_WR)
    assert ends.input.get(timeout=20) == b""
    ends.link.write(b"bye\n")
    assert ends.link.socket.recv(100) == b"bye\n"


def test_the_end_of_the_debugger_is_the_end_of_the_socket(ends: LinkEnds) -> None:
    ends.link.write(b"last")
    ends.link.write(b"")
    assert ends.link.socket.recv(100) == b"last"
    assert ends.link.socket.recv(100) == b""


def test_output_that_nobody_reads_does_not_block_and_is_counted_at_the_end(ends: LinkEnds) -> None:
    for _ in range(64):
        ends.link.write(bytes(1 << 16))
    assert ends.written < 64 << 16
    ends.link.close()
    assert ends.written == 64 << 16


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


def read_all(rank: DebuggedRank) -> bytes:
    found = b""
    while content := rank.read():
        found += content
    return found


def test_a_rank_runs_while_it_is_debugged_and_is_stopped_again(tmp_path: Path) -> None:
    with answering_rank(tmp_path, WAITS, "ipc://@of-this-test") as process:
        rank_debugger.stop(process)
        debugged = DebuggedRank(process, "ipc://@of-this-test")
        assert debugged.descriptor is not None
        assert read_all(debugged).startswith(b'{"threads"')  # the rank has run the program
        assert debugged.descriptor is None
        assert state_of(process) != "T"
        debugged.write(b"late input\n")
        debugged.close()
        deadline = time.monotonic() + 20
        while state_of(process) != "T":
            assert time.monotonic() < deadline


def test_a_process_that_does_not_listen_has_no_debugger(tmp_path: Path) -> None:
    with answering_rank(tmp_path, WAITS, "ipc://@of-this-test") as process:
        debugged = DebuggedRank(process, "ipc://@of-another-run")
        assert debugged.descriptor is None
        assert debugged.read() == b""
        debugged.close()
