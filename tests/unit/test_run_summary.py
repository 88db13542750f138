"""The summary of a run whose traces are missing."""

from __future__ import annotations

from pathlib import Path

from maya.launcher.prediction import summarise_prediction
from maya.launcher.summary_file import FinishedRun as FinishedRun
from maya.launcher.terminal_summary import summary


def test_a_rank_that_could_not_open_its_trace_is_named(tmp_path: Path) -> None:
    """It is not taken for one that asked nothing of its GPU: its clock has moved."""
    run = FinishedRun(
        script="train.py",
        nodes=1,
        ranks_per_node=3,
        cluster=None,
        gpu="h100",
        exit_code=0,
        attempts=1,
        seconds=1.0,
        exits=[],
        traces={},
        stopped_by=None,
        problem=None,
        unshared={},
        coordinator={"collectives": 0, "messages": 9, "host_ns": [0, 5_000, 7_000]},
    )
    (_, line) = summary(run, tmp_path)
    assert line.startswith("no trace of ranks 1-2, which could not write to ")
    assert summarise_prediction(run, tmp_path).lines == ["no prediction: no trace was written"]
