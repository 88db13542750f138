"""Jobs on several machines that hang: found and explained as on one machine. Node agents on this one play the machines
(tests/helpers/local_agents.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import local_agents
from helpers.debugger_terminal import on_terminal, processes_of, state_of
from helpers.hang_launch import ROOT, SCRIPTS, HangRun, launch
from helpers.marked_processes import processes_with

from maya.hangs.request_socket import NotRunningError, ask_job
from rank_runtime.build import Build


@contextmanager
def on_nodes(folder: Path, script: str, nodes: int, ranks: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose ranks run on several nodes."""
    (folder / "nodes").mkdir()
    words = ["--nproc", str(ranks), "--out", str(folder / "out"), "--no-trace", *options, f"{SCRIPTS / script}.py"]
    process = subprocess.Popen(
        [sys.executable, local_agents.__file__, str(nodes), *words],
        cwd=ROOT,
        env={**os.environ, "MAYA_TEST_NODES": str(folder / "nodes"), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate()
        deadline = time.monotonic() + 30
        while (left := processes_with(f"MAYA_TEST_NODES={folder / 'nodes'}")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


def hung_on_nodes(folder: Path, script: str, nodes: int, ranks: int, *options: str) -> HangRun:
    with on_nodes(folder, script, nodes, ranks, *options) as process:
        output = process.communicate(timeout=200)[0]
    return HangRun(process.returncode, output, folder / "out")


def explained(report: dict[str, Any] | None) -> dict[str, Any]:
    """A report, without what differs between two runs."""
    assert report is not None
    groups = [
        {name: group[name] for name in ("ranks", "state", "stuck", "doing", "missing", "called_at", "stands_at")}
        for group in report["groups"]
    ]
    return {"groups": groups, **{name: report[name] for name in ("kind", "ranks", "odd", "divergence", "hints")}}


@pytest.mark.parametrize(
    ("script", "named"),
    [
        pytest.param("conditional_all_reduce", "rank 1 on node-1 never called it", id="nccl"),
        pytest.param("mismatched_types", "rank 1 on node-1: posted ", id="mismatch"),
        pytest.param("different_store_keys", "waiting for the keys ", id="store"),
    ],
)
def test_the_report_is_that_of_one_machine_and_names_the_nodes(
    build: Build, tmp_path: Path, script: str, named: str
) -> None:
    hung = hung_on_nodes(tmp_path, script, 2, 2)
    assert hung.exit_code == 1, hung.output
    report = hung.report
    (tmp_path / "alone").mkdir()
    alone = launch(tmp_path / "alone", SCRIPTS / f"{script}.py", 2)
    assert explained(report) == explained(alone.report)
    assert named in hung.output
    assert report is not None
    assert report["nodes"] == {"node-0": [0], "node-1": [1]}
    recorders = sorted((hung.folder / "flight_recorder").iterdir())
    assert [path.name for path in recorders] == ["rank_0", "rank_1"]
    assert all(path.stat().st_size > 0 for path in recorders)


def test_maya_stacks_asks_the_ranks_of_all_nodes(build: Build, tmp_path: Path) -> None:
    def stacks() -> dict[str, Any]:
        try:
            (report,) = ask_job(tmp_path / "out")
        except NotRunningError:
            report = {"groups": []}
        return report

    with on_nodes(tmp_path, "asleep", 2, 2):
        deadline = time.monotonic() + 120
        report = stacks()
        while not any(group["doing"] == "sleeping" for group in report["groups"]):
            assert time.monotonic() < deadline, report
            time.sleep(0.2)
            report = stacks()
        assert report["nodes"] == {"node-0": [0], "node-1": [1]}
        ask = [sys.executable, "-m", "maya.cli", "stacks", str(tmp_path / "out")]
        shown = subprocess.run(ask, capture_output=True, text=True, cwd=ROOT)
    assert "rank 1 on node-1: sleeping" in shown.stdout


def test_the_debugger_runs_in_a_rank_of_another_node(build: Build, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "conditional_all_reduce", 2, "pdb", nodes=2) as terminal:
        report = terminal.until("rank to debug, or q to end the job [1]: ")
        assert "rank 1 on node-1: waiting for other ranks in all_reduce" in report
        terminal.type("\n")
        terminal.until("(Pdb rank 1) ")
        terminal.type("p rank, step\n")
        assert "(1, 2)" in terminal.until("(Pdb rank 1) ")
        terminal.type("p __import__('os').getpid()\n")
        answer = terminal.until("(Pdb rank 1) ")
        ranks = [process for process in processes_of(tmp_path) if f"\n{process}\r" in answer]
        assert [state_of(process) == "T" for process in ranks] == [False]
        terminal.type("q\n")
        terminal.until("[1]: ")
        deadline = time.monotonic() + 30
        while state_of(ranks[0]) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.type("0\n")
        terminal.until("(Pdb rank 0) ")
        terminal.type("\x04")
        terminal.until("[0]: ")
        terminal.type("q\n")
        assert terminal.exit_code() == 1
    assert processes_of(tmp_path) == []
