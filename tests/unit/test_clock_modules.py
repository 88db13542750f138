"""Clock functions in a rank: which modules get real time, and that the replacements look like the originals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rank_runtime.zygote.python_clock import is_real

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("module", "real"),
    [
        ("__main__", False),
        ("", False),
        ("train", False),
        ("distributed", False),  # of the user's own
        ("timeit", False),
        ("logging", False),
        ("torch.utils.benchmark.utils.timer", False),
        ("torch.optim.adamw", False),
        ("torch.distributed.pipelining.schedules", False),
        ("threading", True),
        ("multiprocessing.connection", True),
        ("torch.distributed.elastic.rendezvous.api", True),
        ("torch.utils.data._utils.worker", True),
        ("torch._inductor.scheduler", True),
        ("rank_runtime.zygote.process", True),
    ],
)
def test_only_modules_of_the_system_get_real_time(module: str, real: bool) -> None:
    assert is_real(module) is real


def test_the_replaced_clock_functions_look_like_the_originals() -> None:
    """In a process that stands where the zygote stands: before there is a rank."""
    script = """
        import copy, functools, os, pickle, sys, time
        real = {name: getattr(time, name) for name in ("time", "perf_counter", "sleep", "localtime", "strftime")}
        from rank_runtime.zygote.python_clock import PythonClock
        clock = PythonClock({"MAYA_CLOCK": "virtual", "MAYA_CLOCK_START": "1700000000000000000"})
        del sys.path[0]

        assert (time.time(), time.time_ns()) == (1.7e9, 1_700_000_000_000_000_000)
        assert time.perf_counter() == time.monotonic() == time.process_time() == time.thread_time() == 0.0
        assert time.perf_counter_ns() == time.monotonic_ns() == time.process_time_ns() == time.thread_time_ns() == 0
        assert time.clock_gettime(time.CLOCK_REALTIME) == 1.7e9 and time.clock_gettime_ns(time.CLOCK_MONOTONIC) == 0
        assert time.strftime("%Y") == "2023" and time.strftime("%Y", time.gmtime(0)) == "1970"
        assert time.localtime() == time.localtime(1.7e9) and time.ctime() == time.ctime(1.7e9) == time.asctime()

        class Timer:
            clock = time.perf_counter  # a built-in function does not become a method

        assert Timer().clock() == 0.0
        for name, function in real.items():
            now = getattr(time, name)
            assert repr(now) == repr(function) and now.__name__ == name and now.__doc__ == function.__doc__
            assert now.__module__ == "time" and pickle.loads(pickle.dumps(now)) is now is copy.deepcopy(now)
            assert functools.wraps(now)(lambda: None).__name__ == name
        for wrong in (lambda: time.sleep(), lambda: time.sleep(-1), lambda: time.time(1), lambda: time.sleep("1")):
            try:
                wrong()
            except (TypeError, ValueError):
                continue
            raise AssertionError("it did not complain")

        import queue, threading
        assert not threading.Event().wait(0.01)
        try:
            queue.Queue().get(timeout=0.01)
        except queue.Empty:
            pass

        process = os.fork()
        if process == 0:
            os._exit(0 if time.time() > 1.7e9 + 1e6 and time.perf_counter() > 0 else 1)
        assert os.waitpid(process, 0)[1] == 0
        clock.begin()  # no fake libraries here: real time
        assert time.time() > 1.7e9 + 1e6
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
