"""Python's clocks tell a script virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.script_run import MayaRun

ROOT = Path(__file__).resolve().parents[2]


ONE_RANK = """
    import ctypes, json, logging, os, time, timeit
    from datetime import datetime
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
    found["ahead_s"] = time.time() - datetime.now().timestamp()
    record = logging.LogRecord("a", logging.INFO, "", 0, "", (), None)
    found["log_ahead_s"], found["relative_ms"] = record.created - datetime.now().timestamp(), record.relativeCreated

    class Clocks(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, item):
            return time.time() - datetime.now().timestamp()

    found["worker_ahead_s"] = next(iter(DataLoader(Clocks(), num_workers=1))).item()
    print(json.dumps(found))
"""


def test_pythons_clocks_tell_virtual_time(maya_run: MayaRun) -> None:
    run = maya_run(ONE_RANK)
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    read_ns = json.loads((run.folder / "run.json").read_text())["host"]["clock_read"]
    assert found["began_ns"] < 10**8
    assert found["slept_ns"] == 50_000_000 + read_ns
    # 2 * 8192**3 operations at no more than 989 TFLOPS
    assert 1.1e-3 < found["event_ms"] / 1e3 < 3e-3
    assert found["event_ms"] / 1e3 < found["product_s"] < found["event_ms"] / 1e3 + 1e-3
    assert found["benchmark_s"] == pytest.approx(found["event_ms"] / 1e3, rel=0.2)
    assert found["timeit_is_ours"]
    assert found["ahead_s"] > 9e4
    assert found["log_ahead_s"] > 9e4
    assert found["relative_ms"] > 9e7
    assert abs(found["worker_ahead_s"]) < 60


TWO_RANKS = """
    import json, os, subprocess, sys, time
    start = time.time_ns() - time.perf_counter_ns()
    child = subprocess.run([sys.executable, "-c", "import time; print(time.time)"], capture_output=True, text=True)
    print(json.dumps({
        "start": start,
        "now": time.perf_counter_ns(),
        "path": os.environ.get("PYTHONPATH"),
        "left": "MAYA_ZYGOTE" in os.environ,
        "ours": [name for name in sys.modules if name.startswith(("rank_runtime", "sitecustomize"))],
        "child": type(time.time).__name__ if "built-in" not in child.stdout else "real",
    }))
"""


@pytest.mark.parametrize("options", [(), ("--no-preload",)], ids=["forked", "started anew"])
def test_all_ranks_begin_at_the_same_time(maya_run: MayaRun, options: tuple[str, ...]) -> None:
    run = maya_run(TWO_RANKS, "--nproc", "2", *options, environment={"PYTHONPATH": str(ROOT)})
    assert run.exit_code == 0, run.output
    ranks = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(ranks) == 2
    assert ranks[0]["start"] == ranks[1]["start"]
    assert all(rank["now"] < 10**8 for rank in ranks)
    assert all((rank["path"], rank["left"], rank["child"]) == (str(ROOT), False, "real") for rank in ranks)
    assert all(rank["ours"] == [] for rank in ranks)


def test_with_the_wall_clock_pythons_clocks_are_untouched(maya_run: MayaRun) -> None:
    run = maya_run("import time\nprint(type(time.time).__name__, type(time.sleep).__name__)", "--clock", "wall")
    assert run.stdout == "builtin_function_or_method builtin_function_or_method\n"
    assert json.loads((run.folder / "run.json").read_text())["clock"] == "wall"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary.get("emulation", summary)["coordinator"] == {}, "one rank needs none"
