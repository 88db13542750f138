"""All ranks of a job begin at the same virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.script_run import MayaRun

ROOT = Path(__file__).resolve().parents[2]


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
