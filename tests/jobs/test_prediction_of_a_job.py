"""A real job, from the command line to its prediction: what the summary says is what the script itself saw."""

from __future__ import annotations

import gzip
import json

import pytest
from helpers.script_run import MayaRun, ScriptRun

from maya.report.collect import collect
from maya.results.predict import predict
from maya.results.prediction_json import prediction_json

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


@pytest.fixture
def job(maya_run: MayaRun) -> ScriptRun:
    run = maya_run(TRAINING, "--nproc", "2", "--cluster", "dgx-h100", "--price-per-gpu-hour", "2")
    assert run.exit_code == 0, run.stderr
    return run


def test_a_job_is_predicted(job: ScriptRun) -> None:
    content = json.loads((job.folder / "summary.json").read_text())
    assert content["version"] == 2
    assert content["no_prediction"] is None
    assert content["emulation"]["seconds"] > 0
    prediction = content["prediction"]
    assert prediction["steps"]["count"] == 4
    assert prediction["throughput"]["samples_per_step"] == 2 * 2 * 8
    assert prediction["throughput"]["price_per_step"] > 0
    for rank in prediction["ranks"]:
        assert sum(rank["time_ns"]) == rank["step_ns"] > 0
    # Memory is what torch and CUDA said, to the byte.
    said = [int(word) for line in job.stdout.splitlines() if line.startswith("memory") for word in line.split()[1:]]
    assert prediction["ranks"][0]["memory_bytes"] == said

    printed = [line for line in job.stderr.splitlines() if line.startswith("maya-torchrun: ")]
    for label in ("step ", "speed ", "of peak ", "cost ", "time ", "memory ", "network ", "based on ", "open "):
        assert any(line.startswith(f"maya-torchrun: {label}") for line in printed), job.stderr

    trace = job.folder / "traces" / "rank0_trace.json.gz"
    kernels = [
        event["name"]
        for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        if event.get("cat") == "kernel"
    ]
    assert any(name.startswith("ncclDevKernel_AllReduce") for name in kernels)
    assert (job.folder / "cluster_trace.json.gz").exists()

    # A replay says the same, and writes the same bytes.
    before = trace.read_bytes()
    assert json.loads(json.dumps(prediction_json(predict(job.folder).result))) == prediction
    assert trace.read_bytes() == before


def test_a_job_that_fails_is_not_predicted(maya_run: MayaRun) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda'); raise SystemExit(3)")
    assert run.exit_code == 1
    assert "maya-torchrun: no prediction: the job failed" in run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    assert (content["prediction"], content["no_prediction"]) == (None, "the job failed")


def test_a_step_annotation_that_is_not_there_is_named(maya_run: MayaRun) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda')", "--steps-from", "generate")
    assert run.exit_code == 0
    assert 'maya-torchrun: no prediction: no annotation "generate" in the traces' in run.stderr


def test_expandable_segments_reserve_what_torch_says(maya_run: MayaRun) -> None:
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


def test_optimizers_are_told_apart_by_what_they_update(maya_run: MayaRun) -> None:
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
        chosen = router(tokens).argmax(-1)
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


def test_assumptions_come_before_the_numbers(maya_run: MayaRun) -> None:
    run = maya_run(PLACEHOLDERS)
    assert run.exit_code == 0, run.stderr
    content = json.loads((run.folder / "summary.json").read_text())
    found = {each["kind"]: each for each in content["assumptions"]}
    assert list(found) == ["placeholder_reads", "empty_gemms", "steps"]
    script = next(run.folder.parent.glob("script*.py"))
    lines = dict(enumerate(script.read_text(encoding="utf-8").splitlines(), 1))

    def marked(kind: str) -> dict[str, int]:
        """Times by the words at the end of a line."""
        places = [place for place in found[kind]["places"] if place["at"]]
        return {lines[int(place["at"].rpartition(":")[2])].split()[-1]: place["times"] for place in places}

    assert marked("placeholder_reads")["LOSS"] == 3
    assert marked("empty_gemms") == {"EXPERT": 4 * 3}
    assert content["prediction"]["steps"]["source"] == "update"
    assert content["prediction"]["steps"]["count"] == 3

    said = [line.removeprefix("maya-torchrun: ") for line in run.stderr.splitlines()]
    labels = [line.split()[0] for line in said if line.startswith(("assumes", "step "))]
    assert labels == ["assumes"] * 3 + ["step"]
    assert any("item() at" in line and f"{script.name}:" in line for line in said)
    notes = collect(predict(run.folder).result).notes
    assert notes[:3] == [each["text"] for each in content["assumptions"]]


def test_products_of_nothing_that_the_script_means(maya_run: MayaRun) -> None:
    """Nothing is read that was not computed, so nothing is said."""
    run = maya_run("import torch; print((torch.ones(0, 8, device='cuda') @ torch.ones(8, 8, device='cuda')).shape)")
    assert run.exit_code == 0, run.stderr
    assert json.loads((run.folder / "summary.json").read_text())["assumptions"] == []


@pytest.mark.parametrize("options", [("--no-trace",), ("--clock", "wall")])
def test_a_wall_clock_is_named(maya_run: MayaRun, options: tuple[str, ...]) -> None:
    run = maya_run("import torch; torch.ones(1, device='cuda')", *options)
    assert run.exit_code == 0, run.stderr
    (clock,) = json.loads((run.folder / "summary.json").read_text())["assumptions"]
    assert clock["kind"] == "clock"
    assert f"({' '.join(options[:2])})" in clock["text"]
    assert f"maya-torchrun: {clock['text']}" in run.stderr
