"""The reason why a process stands still, read from its stacks and from /proc."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.hangs import processes, thread_waits
from coordinator.hangs.deadlock import Condition
from maya.hangs import python_stacks

# ---- what a thread waits for, with real processes ----

_CHILD = """
import faulthandler, sys, threading
print(f"0x{threading.main_thread().ident:016x}", flush=True)
faulthandler.dump_traceback_later(0.3, file=sys.stdout)
"""


@contextmanager
def standing(folder: Path, code: str) -> Iterator[tuple[int, python_stacks.Stacks]]:
    """A process that runs the code, and what a rank would tell of it, once its threads stand still."""
    script = folder / "child.py"
    script.write_text(_CHILD + code, encoding="utf-8")
    child = subprocess.Popen([sys.executable, "-u", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child:
        try:
            answer = b"main " + child.stdout.readline() + b"python\n"
            while b"in <module>\n" not in answer:
                answer += child.stdout.readline()
            yield child.pid, python_stacks.parse(answer)
        finally:
            child.kill()


def condition_of(folder: Path, code: str, *, on_device: bool = False) -> Condition:
    """`on_device`: as if the main thread's lock was the device's."""
    with standing(folder, code) as (process, told):
        call = processes.system_call(process)
        assert call is not None
        device = (range(call.arguments[0], call.arguments[0] + 48),) if on_device else ()
        told = python_stacks.Stacks(told.main, told.others, (), device, known=True)
        return thread_waits.condition(process, told, True, None)


LOCK = "lock = threading.Lock(); lock.acquire()\n"
BUSY = "threading.Thread(target=lambda: __import__('time').sleep(60), daemon=True).start()\n"
JOINED = """
import ctypes
c, thread = ctypes.CDLL(None), ctypes.c_ulong()
c.pthread_create(ctypes.byref(thread), None, c.sleep, ctypes.c_void_p(60))
"""
IDLE = "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import time; time.sleep(60)", id="sleep"),
        pytest.param("sys.stdin.read()", id="pipe"),
        pytest.param("import socket; a, b = socket.socketpair(); a.recv(1)", id="socket"),
        pytest.param("import select; select.select([0], [], [])", id="select"),
        pytest.param("import subprocess; subprocess.run(['cat'])", id="child"),
        pytest.param("import signal; signal.pause()", id="signal"),
        pytest.param("import fcntl\na, b = open(__file__), open(__file__)\n"
                     "fcntl.flock(a, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX)", id="file lock"),
        pytest.param("import multiprocessing; multiprocessing.Semaphore(0).acquire()", id="lock of several processes"),
        pytest.param(LOCK + "lock.acquire(timeout=50)  # recv()", id="time limit"),
        pytest.param(LOCK + "lock.acquire()", id="lock that nobody can free"),
        pytest.param(BUSY + "threading.Event().wait()", id="lock that a thread may free"),
        pytest.param(JOINED + "c.pthread_join(thread, None)  # barrier()", id="end of a thread"),
    ],
)  # fmt: skip
def test_a_process_that_waits_for_something_outside_may_go_on(code: str, tmp_path: Path) -> None:
    assert condition_of(tmp_path, code) is Condition.FREE


def test_a_wait_for_the_device_is_stuck_unless_another_thread_may_go_on(tmp_path: Path) -> None:
    wait = LOCK + "lock.acquire()"
    assert condition_of(tmp_path, wait, on_device=True) is Condition.CALLS
    assert condition_of(tmp_path, IDLE + wait, on_device=True) is Condition.CALLS
    assert condition_of(tmp_path, BUSY + wait, on_device=True) is Condition.FREE


def test_a_wait_in_a_collective_is_a_wait_for_other_ranks(tmp_path: Path) -> None:
    assert condition_of(tmp_path, LOCK + "lock.acquire(timeout=1000)  # barrier()") is Condition.OTHER_RANKS
    assert condition_of(tmp_path, BUSY + LOCK + "lock.acquire()  # barrier()") is Condition.FREE
