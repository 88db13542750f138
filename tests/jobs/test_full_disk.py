"""Traces and results that cannot be written: the script's clocks stay right, and what is said of the run is true.

A rank's disk is full when the rank's own limit on file sizes is reached (RLIMIT_FSIZE), which takes no root.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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


def test_clocks_do_not_depend_on_the_trace(maya_run: MayaRun) -> None:
    """Whether a half of the trace is written or nothing, the script reads the same times."""
    half, nothing = (maya_run(TRAIN, script_arguments=[part]) for part in ("half", "nothing"))
    assert half.stdout == nothing.stdout
    elapsed_ms = [float(line.split()[1]) for line in half.stdout.splitlines()]
    assert len(elapsed_ms) == STEPS
    assert len(set(elapsed_ms[2:])) == 1, "virtual time: steps before and after the disk was full take as long"
    for run in (half, nothing):
        assert run.exit_code == 0, run.stderr
        assert "File too large; the trace ends here, the program and its clocks go on" in run.stderr

    assert len(lengths_of_steps(half)) == CUT_AT
    assert f"the trace of rank 0 ends after {CUT_AT} complete steps: the limit on file sizes was reached" in half.stderr
    assert RUN_AGAIN in half.stderr
    assert "ended    no: the limit on file sizes was reached" in maya("trace", "show", half.trace).output

    assert "no prediction: rank 0 is left out: " in nothing.stderr
    assert "rank0.trace is empty: the disk was full, or a limit reached" in nothing.stderr
    assert "GPU-hours" not in nothing.stderr
    written = json.loads((nothing.folder / "summary.json").read_text())
    assert written["prediction"] is None
    assert "is empty" in written["no_prediction"]
    for words in (("whatif", nothing.folder), ("report", nothing.folder), ("trace", "show", nothing.trace)):
        said = maya(*words)
        assert said.exit_code == 1
        assert "is empty: the disk was full" in said.output


def test_one_rank_cannot_write_its_trace(maya_run: MayaRun) -> None:
    run = maya_run(TRAIN, "--nproc", "2", script_arguments=["half"])
    assert run.exit_code == 0, run.stderr
    assert run.stdout.count("\n") == STEPS
    assert len(lengths_of_steps(run)) == CUT_AT
    assert all(lengths_of_steps(run))
    cut = (
        f"the trace of rank 1 ends after {CUT_AT} complete steps: the limit on file sizes was reached (File too large)"
    )
    assert f"{cut}; {RUN_AGAIN}" in run.stderr
    said = maya("whatif", run.folder)
    assert f"incomplete: {cut}" in said.output
    assert f"2 ranks, {CUT_AT} steps" in said.output
    assert "and the same prediction as in summary.json" in said.output
    assert maya("report", run.folder).exit_code == 0
    assert cut in (run.folder / "report.html").read_text()
    check_prediction_without_traces(run.folder)


def check_prediction_without_traces(folder: Path) -> None:
    """Traces for Perfetto that cannot be written do not cost the prediction, and nothing half-written is left."""
    shutil.rmtree(folder / "traces")
    (folder / "traces").touch()
    made = predict(folder)
    assert made.result.steps.count == CUT_AT
    assert made.unwritten == f"cannot write traces for Perfetto to {folder}: File exists"
    assert not list(folder.rglob("*.tmp"))


def test_the_folder_is_removed_while_the_job_runs(maya_run: MayaRun) -> None:
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
