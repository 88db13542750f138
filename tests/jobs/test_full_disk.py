"""Traces and results that cannot be written: the script's clocks stay right, and messages tell the truth about the run.

A rank's disk is full when the rank's own limit on file sizes is reached (RLIMIT_FSIZE), which takes no root.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from helpers.script_run import MayaRun, ScriptRun

from maya.cli.main import main
from maya.results.predict import predict

STEPS, CUT_AT = 8, 4
# The last rank's trace can be written as far as the argument says: "nothing" or "half".
TRAIN = f"""
import os, resource, sys, time, torch, torch.distributed as dist
rank, ranks, writes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
if writes == "nothing":
    limit(0)
torch.cuda.set_device(rank)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
if ranks > 1:
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.ones(512, 512, device="cuda")
for step in range({STEPS}):
    if step == {CUT_AT}:
        time.sleep(1.1)  # what the next record finds buffered is older than a second, and is written
        torch.cuda.synchronize()
        if writes == "half" and rank == ranks - 1:
            limit(os.path.getsize(os.environ["MAYA_TRACE"]) + 100)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began = time.perf_counter_ns()
    begin.record()
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    torch.cuda.synchronize()
    if rank == ranks - 1:
        print(step, begin.elapsed_time(end), time.perf_counter_ns() - began, flush=True)
if ranks > 1:
    dist.destroy_process_group()
"""
RUN_AGAIN = "raise the limit (ulimit -f), and run the job again"


def maya(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def lengths_of_steps(run: ScriptRun) -> list[int]:
    lengths: list[int] = json.loads((run.folder / "summary.json").read_text())["prediction"]["steps"]["lengths_ns"]
    return lengths


@pytest.fixture(scope="module")
def half(maya_run_once: MayaRun) -> ScriptRun:
    """A run whose only rank writes half of its trace."""
    return maya_run_once(TRAIN, script_arguments=["half"])


@pytest.fixture(scope="module")
def nothing(maya_run_once: MayaRun) -> ScriptRun:
    """A run whose only rank writes nothing."""
    return maya_run_once(TRAIN, script_arguments=["nothing"])


@pytest.fixture(scope="module")
def one_of_two(maya_run_once: MayaRun) -> ScriptRun:
    """A run of two ranks, of which the second writes half of its trace."""
    return maya_run_once(TRAIN, "--nproc", "2", script_arguments=["half"])


def test_the_script_reads_the_same_times_however_much_of_the_trace_is_written(
    half: ScriptRun, nothing: ScriptRun
) -> None:
    assert half.stdout == nothing.stdout


def test_steps_take_the_same_time_after_the_disk_is_full(half: ScriptRun) -> None:
    elapsed_ms = [float(line.split()[1]) for line in half.stdout.splitlines()]
    assert len(elapsed_ms) == STEPS
    assert len(set(elapsed_ms[2:])) == 1


@pytest.mark.parametrize("name", ["half", "nothing"])
def test_the_program_goes_on_when_its_trace_ends(name: str, request: pytest.FixtureRequest) -> None:
    run: ScriptRun = request.getfixturevalue(name)
    assert run.exit_code == 0, run.stderr
    assert "File too large. The trace ends here; the program and its clocks continue" in run.stderr


def test_whole_steps_of_half_a_trace_are_predicted(half: ScriptRun) -> None:
    assert len(lengths_of_steps(half)) == CUT_AT
    assert f"the trace of rank 0 ends after {CUT_AT} complete steps: the limit on file sizes was reached" in half.stderr
    assert RUN_AGAIN in half.stderr


def test_trace_show_tells_why_half_a_trace_ends(half: ScriptRun) -> None:
    assert "ended    early: the limit on file sizes was reached" in maya("trace", "show", half.trace).output


def test_an_empty_trace_gives_no_prediction(nothing: ScriptRun) -> None:
    assert "no prediction: rank 0 is left out: " in nothing.stderr
    assert "rank0.trace is empty: the disk was full, or a limit reached" in nothing.stderr
    assert "GPU-hours" not in nothing.stderr
    written = json.loads((nothing.folder / "summary.json").read_text())
    assert written["prediction"] is None
    assert "is empty" in written["no_prediction"]


@pytest.mark.parametrize("command", ["whatif", "report", "trace show"])
def test_commands_refuse_an_empty_trace(nothing: ScriptRun, command: str) -> None:
    said = maya(*command.split(), nothing.trace if command == "trace show" else nothing.folder)
    assert said.exit_code == 1
    assert "is empty: the disk was full" in said.output


CUT = f"the trace of rank 1 ends after {CUT_AT} complete steps: the limit on file sizes was reached (File too large)"


def test_the_whole_steps_of_all_ranks_are_predicted(one_of_two: ScriptRun) -> None:
    assert one_of_two.exit_code == 0, one_of_two.stderr
    assert one_of_two.stdout.count("\n") == STEPS
    assert len(lengths_of_steps(one_of_two)) == CUT_AT
    assert all(lengths_of_steps(one_of_two))
    assert f"{CUT}; {RUN_AGAIN}" in one_of_two.stderr


def test_whatif_says_that_a_trace_is_incomplete(one_of_two: ScriptRun) -> None:
    said = maya("whatif", one_of_two.folder)
    assert f"incomplete: {CUT}" in said.output
    assert f"2 ranks, {CUT_AT} steps" in said.output
    assert "and the same prediction as in summary.json" in said.output


def test_the_report_says_that_a_trace_is_incomplete(one_of_two: ScriptRun) -> None:
    assert maya("report", one_of_two.folder).exit_code == 0
    assert CUT in (one_of_two.folder / "report.html").read_text()


def test_traces_for_perfetto_that_cannot_be_written_do_not_cost_the_prediction(
    one_of_two: ScriptRun, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(one_of_two.folder, folder)
    shutil.rmtree(folder / "traces")
    (folder / "traces").touch()
    made = predict(folder)
    assert made.result.steps.count == CUT_AT
    assert made.unwritten == f"cannot write traces for Perfetto to {folder}: File exists"
    assert not list(folder.rglob("*.tmp"))


def test_a_run_folder_removed_during_the_job_is_reported(maya_run: MayaRun) -> None:
    text = """
        import os, pathlib, shutil, torch
        torch.ones(1000, device="cuda").sum().item()
        shutil.rmtree(pathlib.Path(os.environ["MAYA_TRACE"]).parent)
        torch.ones(1000, device="cuda").sum().item()
        print("done")
    """
    run = maya_run(text)
    assert (run.exit_code, run.stdout) == (0, "done\n")
    assert "was removed while the job ran, and its traces with it" in run.stderr
    assert "summary.json: No such file or directory; there is no summary for programs" in run.stderr
    assert not run.folder.exists()
