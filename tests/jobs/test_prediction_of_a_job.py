"""A real job, from the command line to its prediction: the summary agrees with what the script itself measured."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from helpers.script_run import MayaRun, ScriptRun, runner_in

from maya.report.collect import collect
from maya.results.predict import predict
from maya.results.prediction_json import prediction_json
from rank_runtime.build import Build

TRAINING = """
    import os, torch, torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 100)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        tokens = torch.zeros(2, 8, dtype=torch.int64, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        free, total = torch.cuda.mem_get_info()
        print("memory", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(maya_run_once: MayaRun) -> ScriptRun:
    run = maya_run_once(TRAINING, "--nproc", "2", "--cluster", "dgx-h100", "--price-per-gpu-hour", "2")
    assert run.exit_code == 0, run.stderr
    return run


@pytest.fixture(scope="module")
def summary(job: ScriptRun) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((job.folder / "summary.json").read_text())
    return content


def test_the_summary_has_a_version_and_a_prediction(summary: dict[str, Any]) -> None:
    assert summary["version"] == 3
    assert summary["no_prediction"] is None
    assert summary["emulation"]["seconds"] > 0


def test_steps_samples_and_the_price_are_predicted(summary: dict[str, Any]) -> None:
    prediction = summary["prediction"]
    assert prediction["steps"]["count"] == 4
    assert prediction["throughput"]["samples_per_step"] == 2 * 2 * 8
    assert prediction["throughput"]["price_per_step"] > 0


def test_the_times_of_a_rank_add_up_to_its_step(summary: dict[str, Any]) -> None:
    for rank in summary["prediction"]["ranks"]:
        assert sum(rank["time_ns"]) == rank["step_ns"] > 0


def test_memory_is_what_torch_and_cuda_report_to_the_byte(job: ScriptRun, summary: dict[str, Any]) -> None:
    said = [int(word) for line in job.stdout.splitlines() if line.startswith("memory") for word in line.split()[1:]]
    assert summary["prediction"]["ranks"][0]["memory_bytes"] == said


@pytest.mark.parametrize(
    "label", ["step ", "speed ", "of peak ", "cost ", "time ", "memory ", "network ", "based on ", "open "]
)
def test_the_launcher_prints_the_prediction(job: ScriptRun, label: str) -> None:
    assert any(line.startswith(f"maya-torchrun: {label}") for line in job.stderr.splitlines()), job.stderr


def test_the_trace_of_a_rank_has_the_kernels_of_nccl(job: ScriptRun) -> None:
    trace = json.loads(gzip.decompress((job.folder / "traces" / "rank0_trace.json.gz").read_bytes()))
    kernels = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    assert any(name.startswith("ncclDevKernel_AllReduce") for name in kernels)


def test_the_cluster_has_a_trace(job: ScriptRun) -> None:
    assert (job.folder / "cluster_trace.json.gz").exists()


def test_a_replay_predicts_the_same_and_writes_the_same_bytes(job: ScriptRun, summary: dict[str, Any]) -> None:
    trace = job.folder / "traces" / "rank0_trace.json.gz"
    before = trace.read_bytes()
    assert json.loads(json.dumps(prediction_json(predict(job.folder).result))) == summary["prediction"]
    assert trace.read_bytes() == before


def test_a_job_that_fails_in_its_first_step_is_not_predicted(maya_run: MayaRun) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda'); raise SystemExit(3)")
    assert run.exit_code == 1
    problem = "the job failed before all ranks had finished a step"
    assert f"maya-torchrun: no prediction: {problem}" in run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    assert (content["prediction"], content["no_prediction"]) == (None, problem)


ENDS_IN_STEP_4 = """
    import os, signal, sys
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        if step == 4:
            dist.barrier()  # no rank is behind
            torch.cuda.synchronize()
        if step == 4 and rank == 1:
            {end}
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("end", ["raise RuntimeError('no more data')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_job_that_fails_is_predicted_for_its_finished_steps(maya_run: MayaRun, end: str) -> None:
    run = maya_run(ENDS_IN_STEP_4.replace("{end}", end), "--nproc", "2")
    assert run.exit_code == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith("maya-torchrun: failed     by the 4 steps that all ranks finished, a step takes")
    assert json.loads((run.folder / "summary.json").read_text())["prediction"]["steps"]["count"] == 4


def test_a_job_that_is_stopped_is_predicted_for_its_finished_steps(maya_run: MayaRun) -> None:
    launcher = "int(open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1])"  # the zygote's parent
    end = f"os.kill({launcher}, signal.SIGTERM); signal.pause()"
    run = maya_run(ENDS_IN_STEP_4.replace("{end}", end), "--nproc", "2")
    assert run.exit_code == 1
    assert "stopped    the prediction is of the 4 steps that all ranks finished before SIGTERM" in run.stderr


def test_a_missing_step_annotation_is_named(maya_run: MayaRun) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda')", "--steps-from", "generate")
    assert run.exit_code == 0
    assert 'maya-torchrun: no prediction: no annotation "generate" in the traces' in run.stderr


def test_expandable_segments_reserve_what_torch_reports(maya_run: MayaRun) -> None:
    """Segments that grow, and blocks that leave holes in them: more is reserved than was ever allocated."""
    run = maya_run(
        """
        import os
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        import torch

        holes = [torch.empty(n << 20, device="cuda") for n in (100, 3, 300, 3)]
        del holes[0], holes[1]
        large = torch.empty(700 << 20, device="cuda")
        large.add_(1)
        free, total = torch.cuda.mem_get_info()
        print("memory", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)
        """
    )
    assert run.exit_code == 0, run.stderr
    allocated, reserved, used = (int(word) for word in run.stdout.split()[1:])
    assert reserved > allocated
    prediction = json.loads((run.folder / "summary.json").read_text())["prediction"]
    assert prediction["ranks"][0]["memory_bytes"] == [allocated, reserved, used]


def test_optimizers_are_told_apart_by_the_parameters_they_update(maya_run: MayaRun) -> None:
    """One is made anew for every batch, others step during the backward pass; both take turns in an iteration."""
    run = maya_run(
        """
        import torch

        first, second = (torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).cuda() for _ in range(2))
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in second.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(update)
        for iteration in range(5):
            print(iteration, flush=True)
            first(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
            optimizer.step()
            optimizer.zero_grad()
            second(torch.ones(8, 64, device="cuda")).sum().backward()
        """,
        *("--inject", "delay:rank=0,step=5,seconds=1"),
    )
    assert run.exit_code == 0, run.stderr
    steps = json.loads((run.folder / "summary.json").read_text())["prediction"]["steps"]
    assert (steps["source"], steps["count"]) == ("optimizer", 5)
    assert steps["note"] == "a step has 2 optimizer turns"
    assert steps["lengths_ns"][4] > 10**9 > max(steps["lengths_ns"][:4])  # the live count is that of iterations


PLACEHOLDERS = """
    import torch

    experts = [torch.nn.Linear(512, 512).cuda() for _ in range(4)]
    router = torch.nn.Linear(512, 4).cuda()
    parameters = [p for module in (*experts, router) for p in module.parameters()]
    for _ in range(3):
        tokens = torch.randn(4096, 512, device="cuda")
        chosen = router(tokens)[:, 0].long()
        out = router(tokens).mean()
        for number, expert in enumerate(experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out + expert(tokens[rows]).sum()  # EXPERT
        out.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        if out.item() > 1:  # LOSS
            break
"""


@pytest.fixture(scope="module")
def assuming_run(build: Build, tmp_path_factory: pytest.TempPathFactory) -> ScriptRun:
    run = runner_in(tmp_path_factory.mktemp("placeholders"))(PLACEHOLDERS)
    assert run.exit_code == 0, run.stderr
    return run


def assumptions_of(run: ScriptRun) -> dict[str, dict[str, Any]]:
    content = json.loads((run.folder / "summary.json").read_text())
    return {each["kind"]: each for each in content["assumptions"]}


def marked(run: ScriptRun, kind: str) -> dict[str, int]:
    """How often an assumption was made, by the word at the end of the line of the script."""
    (script,) = run.folder.parent.glob("script*.py")
    lines = dict(enumerate(script.read_text(encoding="utf-8").splitlines(), 1))
    places = [place for place in assumptions_of(run)[kind]["places"] if place["at"]]
    return {lines[int(place["at"].rpartition(":")[2])].split()[-1]: place["times"] for place in places}


def test_the_summary_lists_the_assumptions_of_a_run(assuming_run: ScriptRun) -> None:
    assert list(assumptions_of(assuming_run)) == ["placeholder_branches", "placeholder_reads", "empty_gemms", "steps"]


def test_an_assumption_names_the_lines_that_read_placeholders(assuming_run: ScriptRun) -> None:
    assert marked(assuming_run, "placeholder_reads")["LOSS"] == 3


def test_an_assumption_names_the_lines_of_empty_matmuls(assuming_run: ScriptRun) -> None:
    assert marked(assuming_run, "empty_gemms") == {"EXPERT": 4 * 3}


def test_steps_without_an_optimizer_are_found_by_parameter_updates(assuming_run: ScriptRun) -> None:
    steps = json.loads((assuming_run.folder / "summary.json").read_text())["prediction"]["steps"]
    assert (steps["source"], steps["count"]) == ("update", 3)


def test_assumptions_are_printed_before_the_numbers(assuming_run: ScriptRun) -> None:
    said = [line.removeprefix("maya-torchrun: ") for line in assuming_run.stderr.splitlines()]
    labels = [line.split()[0] for line in said if line.startswith(("assumes", "step "))]
    assert labels == ["assumes"] * 4 + ["step"]
    assert any("item() at" in line and "script1.py:" in line for line in said)


def test_the_report_opens_with_the_assumptions(assuming_run: ScriptRun) -> None:
    notes = collect(predict(assuming_run.folder).result).notes
    assert notes[:4] == [each["text"] for each in assumptions_of(assuming_run).values()]


def test_an_empty_matmul_of_known_sizes_is_no_assumption(maya_run: MayaRun) -> None:
    run = maya_run("import torch; print((torch.ones(0, 8, device='cuda') @ torch.ones(8, 8, device='cuda')).shape)")
    assert run.exit_code == 0, run.stderr
    assert json.loads((run.folder / "summary.json").read_text())["assumptions"] == []


@pytest.mark.parametrize("options", [("--no-trace",), ("--clock", "wall")])
def test_a_wall_clock_is_an_assumption(maya_run: MayaRun, options: tuple[str, ...]) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda')", *options)
    assert run.exit_code == 0, run.stderr
    (clock,) = json.loads((run.folder / "summary.json").read_text())["assumptions"]
    assert clock["kind"] == "clock"
    assert f"({' '.join(options[:2])})" in clock["text"]
    assert f"maya-torchrun: {clock['text']}" in run.stderr
