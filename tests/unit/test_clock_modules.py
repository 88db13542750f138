"""Clock functions in a rank: which modules get real time, and that the replacements look like the originals."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import run_plain_python

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


# A process in the state of the zygote: there is no rank yet.
REPLACED_CLOCKS = Checks(
    """
    import copy, functools, os, pickle, queue, sys, threading, time

    real = {name: getattr(time, name) for name in ("time", "perf_counter", "sleep", "localtime", "strftime")}
    from rank_runtime.zygote.python_clock import PythonClock
    clock = PythonClock({"MAYA_CLOCK": "virtual", "MAYA_CLOCK_START": "1700000000000000000"})
    del sys.path[0]

    def the_time_of_day_is_the_start_of_the_run():
        assert (time.time(), time.time_ns()) == (1.7e9, 1_700_000_000_000_000_000)
        assert time.clock_gettime(time.CLOCK_REALTIME) == 1.7e9

    def other_clocks_begin_at_zero():
        assert time.perf_counter() == time.monotonic() == time.process_time() == time.thread_time() == 0.0
        assert time.perf_counter_ns() == time.monotonic_ns() == time.process_time_ns() == time.thread_time_ns() == 0
        assert time.clock_gettime_ns(time.CLOCK_MONOTONIC) == 0

    def calendar_functions_take_the_virtual_time():
        assert time.strftime("%Y") == "2023" and time.localtime() == time.localtime(1.7e9)
        assert time.ctime() == time.ctime(1.7e9) == time.asctime()

    def calendar_functions_take_a_given_time():
        assert time.strftime("%Y", time.gmtime(0)) == "1970"

    def a_clock_in_a_class_does_not_become_a_method():  # no built-in function does
        class Timer:
            clock = time.perf_counter

        assert Timer().clock() == 0.0

    def names_and_texts_are_those_of_the_originals():
        for name, function in real.items():
            now = getattr(time, name)
            assert repr(now) == repr(function) and now.__name__ == name and now.__doc__ == function.__doc__
            assert now.__module__ == "time"
            assert functools.wraps(now)(lambda: None).__name__ == name

    def clocks_can_be_pickled_and_copied():
        for name in real:
            now = getattr(time, name)
            assert pickle.loads(pickle.dumps(now)) is now is copy.deepcopy(now)

    def wrong_arguments_are_refused():
        for wrong in (lambda: time.sleep(), lambda: time.sleep(-1), lambda: time.time(1), lambda: time.sleep("1")):
            try:
                wrong()
            except (TypeError, ValueError):
                continue
            raise AssertionError("no error was raised")

    def waits_of_threads_take_real_time():
        assert not threading.Event().wait(0.01)
        try:
            queue.Queue().get(timeout=0.01)
        except queue.Empty:
            pass

    def a_forked_child_has_real_time():
        process = os.fork()
        if process == 0:
            os._exit(0 if time.time() > 1.7e9 + 1e6 and time.perf_counter() > 0 else 1)
        assert os.waitpid(process, 0)[1] == 0

    def without_the_fake_libraries_a_rank_has_real_time():
        clock.begin()
        assert time.time() > 1.7e9 + 1e6
    """
)


@pytest.fixture(scope="module")
def replaced_clocks() -> Outcomes:
    return REPLACED_CLOCKS.run(run_plain_python, environment={"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("check", REPLACED_CLOCKS.names)
def test_replaced_clocks(replaced_clocks: Outcomes, check: str) -> None:
    replaced_clocks.require(check)


def test_replaced_clocks_print_nothing(replaced_clocks: Outcomes) -> None:
    assert replaced_clocks.run.stderr == ""
