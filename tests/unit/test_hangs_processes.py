"""A process that stands still, seen from outside: its receives and its watchdog. With real processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from coordinator.hangs import processes


def _reception(code: str, port: int) -> tuple[processes.Reception | None, bool]:
    """Of a process that runs the code with `port` in place of PORT, once it stands still."""
    with subprocess.Popen([sys.executable, "-c", code.replace("PORT", str(port))], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        awaited = None
        for _ in range(100):
            call = processes.system_call(child.pid)
            awaited = processes.reception(child.pid, call) if call is not None else None
            if awaited is not None:
                break
            time.sleep(0.05)
        from_port = awaited is not None and processes.comes_from_port(child.pid, awaited, port)
        child.kill()
    return awaited, from_port


_POLL = """
import select, socket
connection = socket.create_connection(("127.0.0.1", PORT))
poll = select.poll()
poll.register(connection, select.POLLIN)
print("there", flush=True)
poll.poll({milliseconds})
"""


@pytest.mark.parametrize(("milliseconds", "seconds"), [("60000", 60.0), ("None", float("inf"))])
def test_the_timeout_of_a_receive_is_known(milliseconds: str, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        awaited, from_port = _reception(_POLL.format(milliseconds=milliseconds), server.getsockname()[1])
    assert awaited is not None
    assert awaited.seconds == seconds
    assert from_port


def test_a_process_that_reads_from_elsewhere_does_not_wait_for_a_port() -> None:
    code = "import os; print('there', flush=True); os.read(os.pipe()[0], 1)"
    awaited, from_port = _reception(code, 1)
    assert awaited is not None
    assert not from_port


_THREAD = """
import ctypes, threading, time

def rest():
    ctypes.CDLL(None).prctl(15, b"NAME")
    time.sleep(60)

threading.Thread(target=rest, daemon=True).start()
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("name", "expected"), [("pt_nccl_watchdg", True), ("a thread", False)])
def test_a_watchdog_that_has_timed_out_is_recognised(name: str, expected: bool) -> None:
    code = _THREAD.replace("NAME", name)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + (10 if expected else 1)
        while not processes.watchdog_sleeps(child.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes.watchdog_sleeps(child.pid) == expected
        child.kill()
