"""The whole path on one rank, in seconds: an unmodified script on a virtual GPU, its trace and its summary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers.script_run import MayaRun

from maya.trace import RecordKind, read

ROOT = Path(__file__).parents[2]

TRAINING = """
    import torch

    assert torch.cuda.is_available()
    print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.device_count())

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        x = torch.randn(256, 512, device="cuda")
        target = torch.randint(10, (256,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print("done", torch.cuda.max_memory_allocated() > 0)
"""


def test_a_training_script_runs_and_is_recorded(maya_run: MayaRun) -> None:
    run = maya_run(TRAINING)
    assert run.exit_code == 0, run.stderr
    assert run.stdout == "NVIDIA H100 80GB HBM3 (9, 0) 8\ndone True\n"

    trace = read(run.trace)
    assert trace.complete, trace.problem
    assert trace.header.gpu == "NVIDIA H100 80GB HBM3"
    calls = [trace.signature(number)["call"] for number in trace.select(RecordKind.LIBRARY)["signature"].tolist()]
    products = [call for call in calls if call.startswith("cublas")]
    # Two layers: two products forward; backward, one for each weight and one for the hidden activation.
    assert len(products) == 3 * 5
    assert len(trace.kernels()) > 20
    assert "to read it: maya trace show run1/rank0.trace" in run.stderr


def test_a_gpu_of_the_user_has_its_own_properties(maya_run: MayaRun, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('based_on = "a40"\nname = "Mine"\nmemory = "2GiB"\ncontext = "100MiB"\n')
    run = maya_run(
        """
        import torch
        properties = torch.cuda.get_device_properties(0)
        print(properties.name, properties.total_memory, properties.multi_processor_count, properties.L2_cache_size)
        try:
            torch.empty(3 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            print(str(error).splitlines()[0])
        """,
        "--gpu",
        str(mine),
    )
    assert run.exit_code == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first == f"Mine {2 * 2**30} 84 {6 * 2**20}"
    assert second.startswith("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 2.00 GiB")


def test_trace_show_prints_the_records(maya_run: MayaRun) -> None:
    run = maya_run("import torch; torch.ones(1000, 1000, device='cuda') @ torch.ones(1000, 1000, device='cuda')")
    assert run.exit_code == 0, run.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "maya.cli", "trace", "show", str(run.trace)], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    assert "NVIDIA H100 80GB HBM3" in shown.stdout
    assert "cublas" in shown.stdout


def test_an_example_trains(maya_run: MayaRun) -> None:
    example = (ROOT / "scripts" / "examples" / "gpt.py").read_text(encoding="utf-8")
    arguments = ["--layers", "2", "--hidden", "256", "--heads", "4", "--sequence", "128", "--steps", "2"]
    run = maya_run(example, script_arguments=arguments)
    assert run.exit_code == 0, run.stderr
    assert run.stdout.startswith("NVIDIA H100 80GB HBM3, 79.1 GiB\n")
    assert "step 1  loss " in run.stdout
    assert "max memory " in run.stdout
