"""`maya report`: the page of a recorded run shows the run's results."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import needs_browser, open_page
from helpers.recorded_run import maya, record_once

from maya.replay.simulate import simulate
from maya.report import collect
from maya.results import CLASSES, conclude


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def own_run(recorded_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(recorded_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def report(recorded_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    result = maya("report", recorded_run, "-o", file)
    assert result.exit_code == 0, result.output
    assert str(file) in result.output
    return file


def content_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_the_page_is_written_beside_the_run(own_run: Path) -> None:
    assert maya("report", own_run).exit_code == 0
    first = (own_run / "report.html").read_bytes()
    assert maya("report", own_run).exit_code == 0
    assert (own_run / "report.html").read_bytes() == first


def test_the_parts_of_a_step_are_those_of_the_results(recorded_run: Path, report: Path) -> None:
    content, result = content_of(report), conclude(simulate(recorded_run))
    means = result.breakdown.mean_ns
    by_key = {part["key"]: part["ns"] for part in content["parts"]}
    for number, of in enumerate(CLASSES):
        assert by_key.get(of.value, [0, 0]) == means[:, number].tolist()
    assert content["steps"]["ns"] == list(result.steps.lengths_ns)
    assert content["capacity_bytes"] == result.memory.capacity


def test_streams_show_every_event_of_the_step(recorded_run: Path, report: Path) -> None:
    content, result = content_of(report), conclude(simulate(recorded_run))
    shown = next(streams for streams in content["streams"] if streams["rank"] == 0)
    assert shown["joined_ns"] == 0
    one = result.timeline.groups[0]
    inside = (one.end_ns[:, 0] > shown["first_ns"]) & (one.start_ns[:, 0] < shown["last_ns"])
    events = [track["events"][at : at + 5] for track in shown["tracks"] for at in range(0, len(track["events"]), 5)]
    assert len(events) == inside.sum()
    lengths = [min(end, shown["last_ns"]) - max(start, shown["first_ns"])
               for start, end in zip(one.start_ns[inside, 0], one.end_ns[inside, 0], strict=True)]  # fmt: skip
    assert sum(event[1] for event in events) == sum(lengths)
    assert all(number >= 0 for gap, took, _, _, waited in events for number in (gap, took, waited))
    assert {content["activities"][event[2]]["kind"] for event in events} >= {"gemm", "memory_bound", "communication"}


def test_the_page_stays_small_for_steps_of_many_events(recorded_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_MOST_EVENTS", 200)
    content = collect.collect(conclude(simulate(recorded_run)))
    assert all(streams.joined_ns > 0 for streams in content.streams)
    assert sum(len(track.events) for streams in content.streams for track in streams.tracks) <= 5 * 200
    for streams in content.streams:
        for track in streams.tracks:
            gaps, took = track.events[0::5], track.events[1::5]
            assert min(*gaps, *took) >= 0
            assert sum(gaps) + sum(took) <= streams.last_ns - streams.first_ns
    assert any(" × " in activity.name for activity in content.activities)


def test_tables_name_kernels_and_collectives(report: Path) -> None:
    content = content_of(report)
    assert any("cublas" in row[0] for row in content["kernels"]["rows"])
    assert [row[0] for row in content["collectives"]["rows"]].count("AllReduce") >= 1
    assert sum(row[4] for row in content["kernels"]["rows"]) <= 1.0001


@needs_browser
def test_the_page_of_a_run_opens_in_a_browser(report: Path, tmp_path: Path) -> None:
    opened = open_page(report.read_text(encoding="utf-8"), tmp_path)
    assert opened.complaints == []
    assert opened.text_of("title") == "ddp.py"
    assert "2 ranks on 1 node of DGX H100" in opened.text_of("subtitle")
    assert "tokens/s" in opened.text_of("figures")
    assert "host-bound" in opened.text_of("breakdown-table")
    assert "node.nic_rate" not in opened.text_of("settings-tables")
    assert "8 × 400 Gbps" in opened.text_of("settings-tables")


def test_a_page_that_cannot_be_written_is_an_error(recorded_run: Path, tmp_path: Path) -> None:
    result = maya("report", recorded_run, "-o", tmp_path / "no" / "report.html")
    assert result.exit_code == 1
    assert "cannot write" in result.output
