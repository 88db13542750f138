"""Outlines of traces that are kept in a run's folder: used while the traces are the same, and of no consequence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trace_writer import TraceWriter

from coordinator.timeline import behaviour
from coordinator.timeline.behaviour import read_behaviours
from coordinator.timeline.outline import outline, trace_files
from coordinator.timeline.outlines_file import FILE, load_outlines, save_outlines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four ranks, two behaviours."""
    for rank in range(4):
        trace = TraceWriter(rank)
        trace.join(1, range(4))
        for _ in range(3 + rank % 2):
            trace.kernel("work")
        trace.collective(1)
        trace.save(tmp_path)
    return tmp_path


def test_kept_outlines_are_those_of_the_traces(run: Path) -> None:
    files = dict(trace_files(run))
    made = {rank: outline(path) for rank, path in files.items()}
    save_outlines(run, files, made)
    assert load_outlines(run, files) == made


def test_changed_trace_has_none(run: Path) -> None:
    files = dict(trace_files(run))
    save_outlines(run, files, {rank: outline(path) for rank, path in files.items()})
    TraceWriter(2).save(run)
    before = files[3].stat()
    os.utime(files[3], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert sorted(load_outlines(run, files)) == [0, 1]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 0, "ranks": []}', '{"version": 1, "ranks": [[0]]}'])
def test_damaged_file_is_as_good_as_none(run: Path, text: str) -> None:
    (run / FILE).write_text(text, encoding="utf-8")
    assert load_outlines(run, dict(trace_files(run))) == {}


def test_behaviours_are_the_same_with_and_without(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = [each.ranks for each in read_behaviours(run)]
    assert not (run / FILE).exists()  # a small run is read faster than that
    monkeypatch.setattr(behaviour, "_WORTH_PROCESSES", 0)
    first = [each.ranks for each in read_behaviours(run)]
    assert (run / FILE).exists()
    again = [each.ranks for each in read_behaviours(run)]
    assert without == first == again == [[0, 2], [1, 3]]
