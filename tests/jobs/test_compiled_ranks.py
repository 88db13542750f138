"""Ranks that compile: equal graphs are compiled once, and the prediction does not depend on torch's caches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.parallel_launch import ParallelRun, maya_torchrun

from maya.replay.recording import read_recording
from rank_runtime.build import Build

RANKS = 2

# Every rank compiles a graph with a backward pass, and one whose kernels are tuned. Then it compiles the first again,
# without caches, to compare: each rank prints how many graphs it compiled and whether the sources are the same.
SCRIPT = """
import os, re, torch, triton, torch.distributed as dist
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
device = torch.device("cuda", torch.cuda.current_device())


def block(x, weight):
    mask = torch.arange(x.shape[1], device=x.device) > 8
    return torch.where(mask, torch.relu(x @ weight), 0).softmax(-1).sum()


def scale(x):
    return x * 2 + 1


x = torch.ones(64, 256, device=device)
weight = torch.ones(256, 256, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
compiled, tuned = torch.compile(block), torch.compile(scale, options={"coordinate_descent_tuning": True})
sources, compiled_here = [], []


def note(metadata, cache_hit, **_):
    if not cache_hit:
        compiled_here.append(metadata["hash"])


triton.knobs.compilation.listener = note
GraphLowering.save_output_code = lambda source: sources.append(source)
for _ in range(3):
    compiled(x, weight).backward()
    tuned(x)
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
print("kernels", *compiled_here, flush=True)
counts = counters["inductor"]
print("graphs", counts["fxgraph_cache_miss"], counts["fxgraph_cache_hit"], flush=True)
if "COMPARE" in os.environ:
    shared, sources = sources, []
    GraphLowering.save_output_code = lambda source: sources.append(source)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(block)(x, weight).backward()
    shared, again = ([re.sub("# (kernel path|AOT ID):.*", "", text) for text in texts] for texts in (shared, sources))
    print("same" if all(text in shared for text in again) else (shared, again), len(again), flush=True)
dist.destroy_process_group()
"""


def run_in(folder: Path, caches: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> ParallelRun:
    script = folder / "compiled.py"
    script.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(caches / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(caches / "triton"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = maya_torchrun(folder, RANKS, script, options=("--redirects", "3", "--log-dir", str(folder / "logs")))
    assert run.exit_code == 0, run.output
    return run


def line_of(run: ParallelRun, rank: int, first: str) -> list[str]:
    (line,) = [line for line in run.of_rank(rank).splitlines() if line.startswith(first)]
    return line.split()


def prediction_of(run: ParallelRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "out" / "summary.json").read_text(encoding="utf-8"))["prediction"]
    return found


@pytest.fixture(scope="module")
def runs(build: Build, tmp_path_factory: pytest.TempPathFactory) -> tuple[ParallelRun, ParallelRun]:
    """With empty caches, and with those that the first run has left."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("first", "second"):
            (folder / name).mkdir()
        first = run_in(folder / "first", folder / "caches", patch, {})
        return first, run_in(folder / "second", folder / "caches", patch, {})


def test_equal_graphs_are_compiled_once(runs: tuple[ParallelRun, ParallelRun]) -> None:
    """Forward and backward pass of one function, and the other function; the ranks' GPUs have different numbers."""
    counts = [line_of(runs[0], rank, "graphs") for rank in range(RANKS)]
    compiled, loaded = (sum(int(count[column]) for count in counts) for column in (1, 2))
    assert (compiled, loaded) == (3, 3)


def test_equal_kernels_are_compiled_once(runs: tuple[ParallelRun, ParallelRun]) -> None:
    """Those that a rank tries when it tunes, which is not part of compiling a graph."""
    kernels = [name for rank in range(RANKS) for name in line_of(runs[0], rank, "kernels")[1:]]
    assert kernels
    assert len(kernels) == len(set(kernels))


def test_a_second_run_compiles_nothing(runs: tuple[ParallelRun, ParallelRun]) -> None:
    assert [int(line_of(runs[1], rank, "graphs")[1]) for rank in range(RANKS)] == [0, 0]


def test_a_rank_that_loads_does_what_a_rank_that_compiles_does(runs: tuple[ParallelRun, ParallelRun]) -> None:
    for run in runs:
        assert len(read_recording(run.folder / "out").rank_classes) == 1


def test_compiling_and_tuning_leave_nothing_in_the_prediction(runs: tuple[ParallelRun, ParallelRun]) -> None:
    assert prediction_of(runs[0]) == prediction_of(runs[1])


@pytest.mark.slow  # a third run, in which every rank compiles
def test_a_graph_of_another_gpu_is_the_graph_that_the_rank_would_compile(
    build: Build, runs: tuple[ParallelRun, ParallelRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = runs[0].folder.parent / "caches"
    assert (caches / "inductor").is_dir()
    run = run_in(tmp_path, caches, monkeypatch, {"COMPARE": "1"})
    assert [line_of(run, rank, "same") for rank in range(RANKS)] == [["same", "2"]] * RANKS
