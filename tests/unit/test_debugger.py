"""The debugger of hung ranks: which rank comes first, and all threads of a process."""

from __future__ import annotations

import socket
import subprocess
import sys

from helpers.hang_launch import ROOT

from maya.launcher.debugging import blamed

DEBUGGER = ROOT / "rank_runtime" / "debugger.py"


def test_the_debugger_opens_the_rank_that_others_wait_for() -> None:
    waits = {"state": "waits", "ranks": [0, 2], "missing": [1, 3]}
    gone = {"state": "ended", "ranks": [1], "missing": []}
    other = {"state": "stands", "ranks": [3], "missing": []}
    assert blamed({"groups": [waits, other, gone]}) == 3
    assert blamed({"groups": [waits, gone]}) == 0
    posted = [{"state": "posted", "ranks": ranks, "missing": []} for ranks in ([0, 1, 2], [3], [4, 5])]
    assert blamed({"groups": posted}) == 3
    assert blamed({"groups": [gone]}) is None


_STANDS = f"""
import runpy, socket, sys, threading
lock = threading.Lock()

def fetch(shard):
    with lock:
        pass

def debug():
    runpy.run_path({str(DEBUGGER)!r}, {{"connection": int(sys.argv[1]), "main_thread": threading.main_thread().ident}})
    lock.release()

lock.acquire()
threading.Thread(target=fetch, args=(7,), name="fetcher").start()
threading.Thread(target=debug).start()
fetch(3)
"""


def test_the_debugger_shows_all_threads() -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen([sys.executable, "-c", _STANDS, str(theirs.fileno())], pass_fds=[theirs.fileno()]) as rank,
    ):
        theirs.close()
        ours.sendall(b"p shard\nthreads\nthread 1\nargs\nthread 2\nwhere\n")
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile(encoding="utf-8") as answers:
            shown = answers.read()
        assert rank.wait(timeout=30) == 0
    assert "3\n" in shown
    assert "  0  MainThread  <string>(6)fetch()" in shown
    assert "  1  fetcher  <string>(6)fetch()" in shown
    assert "shard = 7" in shown
    assert "*** expected a number from 0 to 1" in shown
