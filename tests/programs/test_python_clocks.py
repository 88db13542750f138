"""Python's clocks tell a script virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.script_run import MayaRun, ScriptRun

ONE_RANK = """
    import copy, ctypes, json, logging, os, pickle, time, timeit
    from datetime import date, datetime, timezone
    from time import perf_counter_ns
    import torch, torch.utils.benchmark
    from torch.utils.data import DataLoader

    found = {"began_ns": perf_counter_ns()}

    before = time.perf_counter_ns()
    time.sleep(0.05)
    found["slept_ns"] = time.perf_counter_ns() - before

    a = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before = time.perf_counter()
    start.record()
    a @ a
    end.record()
    end.synchronize()
    found["product_s"] = time.perf_counter() - before
    found["event_ms"] = start.elapsed_time(end)
    timer = torch.utils.benchmark.Timer("a @ a", globals={"a": a}, timer=torch.utils.benchmark.utils.timer.timer)
    found["benchmark_s"] = timer.timeit(5).median
    found["timeit_is_ours"] = timeit.default_timer is time.perf_counter

    ctypes.CDLL(None).maya_clock_delay(ctypes.c_uint64(10**14))  # a day
    def real_time():
        return ctypes.CDLL(None).time(None)

    class Moment(datetime):
        pass

    found["ahead_s"] = time.time() - real_time()
    found["dates_ahead_s"] = {
        "now": datetime.now().timestamp() - time.time(),
        "now of a zone": datetime.now(timezone.utc).timestamp() - time.time(),
        "utcnow": datetime.utcnow().replace(tzinfo=timezone.utc).timestamp() - time.time(),
        "today": datetime.today().timestamp() - time.time(),
        "a subclass": Moment.now().timestamp() - time.time(),
        "strftime": int(time.strftime("%s")) - time.time(),
        "localtime": time.mktime(time.localtime()) - time.time(),
        "date": (date.today() - datetime.now().date()).total_seconds(),
    }
    moment = datetime.now(tz=timezone.utc)
    found["dates_are_ordinary"] = [
        type(moment) is datetime and isinstance(moment, date) and type(Moment.now()) is Moment,
        pickle.loads(pickle.dumps(moment)) == copy.copy(moment) == moment,
        pickle.loads(pickle.dumps(datetime.now)) == datetime.now,
        datetime.now.__name__ == "now" and datetime.__module__ == "datetime",
    ]
    try:
        datetime.now(1)
    except TypeError as error:
        found["refused"] = str(error)
    record = logging.LogRecord("a", logging.INFO, "", 0, "", (), None)
    found["log_ahead_s"], found["relative_ms"] = record.created - real_time(), record.relativeCreated

    class Clocks(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, item):
            return max(abs(time.time() - real_time()), abs(datetime.now().timestamp() - real_time()))

    found["worker_ahead_s"] = next(iter(DataLoader(Clocks(), num_workers=1))).item()
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(maya_run_once: MayaRun) -> ScriptRun:
    ended = maya_run_once(ONE_RANK)
    assert ended.exit_code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def found(run: ScriptRun) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


def test_a_script_begins_near_zero(found: dict[str, Any]) -> None:
    assert found["began_ns"] < 10**8


def test_a_sleep_takes_its_virtual_time(run: ScriptRun, found: dict[str, Any]) -> None:
    read_ns = json.loads((run.folder / "run.json").read_text())["host"]["clock_read"]
    assert found["slept_ns"] == 50_000_000 + read_ns


def test_a_matmul_takes_the_time_of_the_device(found: dict[str, Any]) -> None:
    assert 1.1e-3 < found["event_ms"] / 1e3 < 3e-3  # 2 * 8192**3 operations at no more than 989 TFLOPS
    assert found["event_ms"] / 1e3 < found["product_s"] < found["event_ms"] / 1e3 + 1e-3


def test_torchs_benchmark_measures_virtual_time(found: dict[str, Any]) -> None:
    assert found["benchmark_s"] == pytest.approx(found["event_ms"] / 1e3, rel=0.2)


def test_timeit_measures_virtual_time(found: dict[str, Any]) -> None:
    assert found["timeit_is_ours"]


def test_the_time_of_day_is_virtual(found: dict[str, Any]) -> None:
    assert found["ahead_s"] > 9e4


def test_dates_agree_with_the_time_of_day(found: dict[str, Any]) -> None:
    assert {name: ahead for name, ahead in found["dates_ahead_s"].items() if not -2 < ahead < 2} == {}


def test_dates_stay_ordinary_objects(found: dict[str, Any]) -> None:
    assert found["dates_are_ordinary"] == [True] * 4
    assert "tz argument must be" in found["refused"] or "tzinfo argument must be" in found["refused"]


def test_log_records_have_virtual_time(found: dict[str, Any]) -> None:
    assert found["log_ahead_s"] > 9e4
    assert found["relative_ms"] > 9e7


def test_workers_of_a_data_loader_have_real_time(found: dict[str, Any]) -> None:
    assert abs(found["worker_ahead_s"]) < 60


def test_with_the_wall_clock_pythons_clocks_are_untouched(maya_run: MayaRun) -> None:
    run = maya_run("import time\nprint(type(time.time).__name__, type(time.sleep).__name__)", "--clock", "wall")
    assert run.stdout == "builtin_function_or_method builtin_function_or_method\n"
    assert json.loads((run.folder / "run.json").read_text())["clock"] == "wall"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary.get("emulation", summary)["coordinator"] == {}, "one rank needs none"
