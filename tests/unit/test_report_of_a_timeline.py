"""`maya report` without a recorded run."""

from __future__ import annotations

from pathlib import Path

from helpers.recorded_run import maya
from helpers.trace_writer import GROUPED, TraceWriter

from maya.replay.run_settings import NO_COSTS, RunSettings
from maya.replay.simulate import simulate
from maya.report import collect
from maya.results import conclude


def test_sends_of_one_group_are_one_event(tmp_path: Path) -> None:
    """As they are one kernel."""
    for rank in (0, 1):
        trace = TraceWriter(rank)
        trace.join(1, (0, 1))
        trace.kernel("first", stream=0)
        trace.send(1, 1 - rank, 1 << 20, stream=7)
        trace.receive(1, 1 - rank, 1 << 20, stream=7, flags=GROUPED)
        trace.kernel("second", stream=0)
        trace.save(tmp_path)
    RunSettings(2, 2, "h100", "dgx-h100", NO_COSTS).save(tmp_path)
    content = collect.collect(conclude(simulate(tmp_path)))
    network = next(track for track in content.streams[0].tracks if track.name == "stream 7")
    assert len(network.events) == 5
    assert content.activities[network.events[2]].name == "communication × 2"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    result = maya("report", tmp_path)
    assert result.exit_code == 1
    assert "is not the folder of a run" in result.output
    assert list(tmp_path.iterdir()) == []
