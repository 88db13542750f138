"""HolisticTraceAnalysis opens our traces, and finds what our own breakdown says.

MAYA_HTA is the folder that HTA was installed into (pip install --target FOLDER HolisticTraceAnalysis), away from the
environment that Maya runs in. Without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training_traces import TrainingWriter, timeline_of
from test_kineto import HOST, job

from maya.results import Result, conclude
from maya.results.kineto_window import KinetoWindow
from maya.results.rank_trace import write_rank_trace
from maya.results.step_breakdown import StepBreakdown, StepWindow, break_down_step
from maya.results.time_classes import COMPUTING, NUMBER, TimeClass, classify

HTA = os.environ.get("MAYA_HTA", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HTA or not (Path(HTA) / "hta").is_dir(), reason="MAYA_HTA names no folder with HTA"),
]

ANALYSE = """
import json, logging, sys
sys.path.append(sys.argv[1])
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[2])
breakdown = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps({"breakdown": breakdown.to_dict("records"), "overlap": overlap.to_dict("records")}))
"""


def analyse(folder: Path) -> dict[str, Any]:
    """What HTA says, in nanoseconds as we write them and not rounded to microseconds."""
    ended = subprocess.run(
        [sys.executable, "-c", ANALYSE, HTA, str(folder)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def breakdown_as_hta_has_it(result: Result, rank: int) -> StepBreakdown:
    """Ours, of what HTA looks at: all that was launched in the steps of the file but the last, from its first start to
    its last end, with collectives from when the rank came to them."""
    window = KinetoWindow(result, rank, most_steps=3)
    one = window.group
    rows = np.arange(int(window.bounds[0]), int(window.bounds[-2]))
    arrival, end = one.arrival_ns[rows, 0], one.end_ns[rows, 0]
    begin = int(arrival.min())
    length = int(end.max()) - begin
    columns = arrival - begin, arrival - begin, end - begin, arrival - begin
    return break_down_step(
        StepWindow(
            length, classify(one.rank_class)[rows], np.zeros(len(rows), dtype=bool), *columns, following_ready=length
        )
    )


def check(result: Result, folder: Path, ranks: range) -> None:
    for rank in ranks:
        write_rank_trace(result, rank, folder)
    found = analyse(folder)
    for rank in ranks:
        ours = breakdown_as_hta_has_it(result, rank)
        theirs = next(row for row in found["breakdown"] if row["rank"] == rank)
        computing = sum(ours.ns[NUMBER[name]] for name in COMPUTING)
        idle = sum(ours.ns[NUMBER[name]] for name in (TimeClass.HOST_BOUND, TimeClass.SLOWED, TimeClass.IDLE))
        assert theirs["kernel_time(us)"] == pytest.approx(sum(ours.ns) / 1000)
        assert theirs["compute_time(us)"] == pytest.approx(computing / 1000)
        assert theirs["idle_time(us)"] == pytest.approx(idle / 1000)
        overlap = next(row for row in found["overlap"] if row["rank"] == rank)
        hidden = 100 * ours.hidden_ns / ours.communication_ns
        assert overlap["comp_comm_overlap_pctg"] == pytest.approx(hidden, abs=0.01)


def test_hta_agrees_on_a_job_of_two_ranks(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    check(job(tmp_path, steps=5), traces, range(2))


def test_hta_agrees_on_overlap_and_waiting(tmp_path: Path) -> None:
    ranks = [TrainingWriter(number) for number in range(4)]
    for rank in ranks:
        rank.join(1, range(4))
        for _ in range(5):
            for layer in range(4):
                rank.batch(layers=1 + (rank.rank + layer) % 2)
                rank.reduce(1, count=1024 * (1 + layer))
            rank.join_streams()
            rank.optimizer()
            rank.synchronise("device")
    result = conclude(timeline_of(tmp_path, ranks, HOST, network_ns=2_500_000, detailed=range(4)))
    traces = tmp_path / "traces"
    traces.mkdir()
    check(result, traces, range(4))
