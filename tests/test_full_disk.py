"""Traces and results that cannot be written: the script's clocks stay right, and what is said of the run is true.

A rank's disk is full when the rank's own limit on file sizes is reached (RLIMIT_FSIZE), which takes no root.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result
from conftest import Run

from maya.cli import main

STEPS, CUT_AT = 8, 4
# The last rank's trace can be written as far as the argument says: "nothing", "half", "all".
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

MayaRun = Callable[..., Run]


def maya(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def lengths_of_steps(run: Run) -> list[int]:
    lengths: list[int] = json.loads((run.folder / "summary.json").read_text())["prediction"]["steps"]["lengths_ns"]
    return lengths


def test_clocks_do_not_depend_on_the_trace(maya_run: MayaRun) -> None:
    """Whether nothing, a half or all of the trace is written, the script reads the same times."""
    whole, half, nothing = (maya_run(TRAIN, script_arguments=[part]) for part in ("all", "half", "nothing"))
    assert whole.stdout.count("\n") == STEPS
    for run in (half, nothing):
        assert run.exit_code == 0, run.stderr
        assert run.stdout == whole.stdout
        assert "File too large; the trace ends here, the program and its clocks go on" in run.stderr

    assert lengths_of_steps(half) == lengths_of_steps(whole)[:CUT_AT]
    assert f"the trace of rank 0 ends after {CUT_AT} whole steps: the limit on file sizes was reached" in half.stderr
    assert RUN_AGAIN in half.stderr
    assert "ended    no: the limit on file sizes was reached" in maya("trace", "show", half.trace).output

    assert "no prediction: rank 0 is left out: " in nothing.stderr
    assert "rank0.trace is empty: the disk was full, or a limit reached" in nothing.stderr
    assert "GPU-hours" not in nothing.stderr
    summary = json.loads((nothing.folder / "summary.json").read_text())
    assert summary["prediction"] is None
    assert "is empty" in summary["no_prediction"]
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
    cut = f"the trace of rank 1 ends after {CUT_AT} whole steps: the limit on file sizes was reached (File too large)"
    assert f"{cut}; {RUN_AGAIN}" in run.stderr
    said = maya("whatif", run.folder)
    assert f"incomplete: {cut}" in said.output
    assert f"2 ranks, {CUT_AT} steps" in said.output
    assert "and what summary.json says" in said.output
    assert maya("report", run.folder).exit_code == 0
    assert cut in (run.folder / "report.html").read_text()


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


def test_the_folder_cannot_be_written_to_any_more(maya_run: MayaRun) -> None:
    """A rank that cannot even open its trace is not taken for one that asked nothing of its GPU."""
    text = """
        import os, torch
        os.mkdir(os.environ["MAYA_TRACE"])
        torch.ones(1000, device="cuda").sum().item()
        os.rmdir(os.environ["MAYA_TRACE"])
    """
    run = maya_run(text)
    assert run.exit_code == 0, run.stderr
    assert "Is a directory; the trace ends here, the program and its clocks go on" in run.stderr
    assert "no trace of rank 0, which could not write to run1" in run.stderr
    assert "no prediction: no trace was written" in run.stderr
    assert "asked nothing of its GPU" not in run.stderr


def test_results_that_cannot_be_written(maya_run: MayaRun, tmp_path: Path) -> None:
    """The exit code is the script's, the figures are said, and nothing half-written is left."""
    text = f"""
        import torch
        from pathlib import Path
        folder = Path({str(tmp_path / "run1")!r})
        (folder / "traces").touch()
        (folder / "summary.json" / "occupied").mkdir(parents=True)
        torch.ones(1000, device="cuda").sum().item()
    """
    run = maya_run(text)
    assert run.exit_code == 0, run.stderr
    assert "maya-torchrun: step  " in run.stderr
    assert "cannot write traces for Perfetto to " in run.stderr
    assert "summary.json: " in run.stderr
    assert "there is no summary for programs" in run.stderr
    assert not list(run.folder.rglob("*.tmp"))
    assert "Traceback" not in run.stderr
