"""The programs of scripts/examples on a virtual GPU: each trains, and its trace has the calls typical of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import Flag, RecordKind, Trace, read

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"

# Large enough that little of it is really computed, as in a real run, and small enough to be quick.
GPT = "gpt.py --layers 2 --hidden 256 --heads 4 --sequence 128 --steps 2"
RESNET = "resnet.py --depths 1 1 1 --image 64 --batch 8 --steps 2"

# Everything computed, on the virtual GPU and on the CPU: the losses agree to this relative error.
PROGRAMS_THAT_AGREE = {
    "gpt.py --layers 2 --hidden 64 --heads 2 --sequence 32 --batch 2 --vocabulary 128 --steps 3": 1e-3,
    "gpt.py --layers 2 --hidden 64 --heads 2 --sequence 32 --batch 2 --vocabulary 128 --steps 3 --dtype float16": 1e-3,
    "gpt.py --layers 2 --hidden 64 --heads 2 --sequence 32 --batch 2 --vocabulary 128 --steps 3 --checkpoint": 1e-3,
    "resnet.py --depths 1 1 --width 16 --image 32 --steps 3 --batch 4 --classes 10": 1e-3,
    "resnet.py --depths 1 1 --width 16 --image 32 --steps 3 --batch 4 --classes 10 --channels-last": 1e-3,
    "lstm.py --hidden 64 --sequence 16 --batch 4 --vocabulary 50 --dropout 0 --steps 3": 1e-4,
    "lstm.py --hidden 64 --sequence 16 --batch 4 --vocabulary 50 --dropout 0 --steps 3 --packed": 1e-4,
    "vit.py --layers 2 --hidden 64 --heads 2 --image 32 --batch 4 --classes 10 --steps 3": 5e-3,
    "low_precision.py --hidden 64 --batch 64 --steps 3": 5e-3,
    "low_precision.py --hidden 64 --batch 64 --steps 3 --format int8": 5e-3,
    "fourier.py --grid 16 --channels 8 --modes 4 --layers 2 --batch 2 --steps 3": 1e-4,
    "linear_algebra.py --samples 64 --size 16 --steps 2": 1e-3,
}

RUN_ON_BOTH_DEVICES = """
    import runpy, sys

    folder, *programs = sys.argv[1:]
    for program in programs:
        name, *arguments = program.split()
        for device in "cuda", "cpu":
            print(f"PROGRAM {program} ON {device}", flush=True)
            sys.argv = [name, *arguments, "--device", device]
            runpy.run_path(f"{folder}/{name}", run_name="__main__")
"""


def run_program(
    maya_run: MayaRun, program: str, *options: str, environment: dict[str, str] | None = None
) -> tuple[ScriptRun, Trace]:
    """A program that has to succeed, given as a command line whose first word is a file of scripts/examples."""
    name, *arguments = program.split()
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    run = maya_run(text, *options, script_arguments=arguments, environment=environment)
    assert run.exit_code == 0, run.output
    assert "is not emulated" not in run.stderr
    trace = read(run.trace)
    assert trace.complete, trace.problem
    return run, trace


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\S+)", text)]


def kernels(trace: Trace, part_of_name: str) -> list[str]:
    """The names of the launched kernels, one per launch, that contain a text."""
    names = [trace.signature(number)["kernel"] for number in trace.kernels()["signature"]]
    return [name for name in names if part_of_name in name]


def calls(trace: Trace, part_of_name: str = "") -> list[dict[str, Any]]:
    """The signatures of the library calls, one per call, whose function's name contains a text."""
    signatures = [trace.signature(number) for number in trace.select(RecordKind.LIBRARY)["signature"]]
    return [signature for signature in signatures if part_of_name in signature["call"]]


def cudnn_operations(trace: Trace, name: str) -> list[dict[str, Any]]:
    """The operations of that name in the graphs that cuDNN executed."""
    graphs = [call["operations"] for call in calls(trace, "cudnnBackendExecute")]
    return [operation for graph in graphs for operation in graph if operation["op"] == name]


def op_names(trace: Trace) -> set[str]:
    return set(trace.ops["name"])


def test_the_losses_are_those_of_the_cpu_when_everything_is_computed(maya_run: MayaRun) -> None:
    programs = list(PROGRAMS_THAT_AGREE)
    run = maya_run(RUN_ON_BOTH_DEVICES, "--compute", "all", script_arguments=[str(EXAMPLES), *programs])
    assert run.exit_code == 0, run.output
    assert "cannot be computed" not in run.stderr
    found: dict[str, list[float]] = {}
    for part in run.stdout.split("PROGRAM ")[1:]:
        title, _, output = part.partition("\n")
        found[title] = losses(output)
    for program, tolerance in PROGRAMS_THAT_AGREE.items():
        on_gpu, on_cpu = found[f"{program} ON cuda"], found[f"{program} ON cpu"]
        assert len(on_cpu) >= 3
        assert on_gpu == pytest.approx(on_cpu, rel=tolerance), program


RUN_IN_TURN = """
    import runpy, sys

    folder, *programs = sys.argv[1:]
    for program in programs:
        name, *arguments = program.split()
        sys.argv = [name, *arguments]
        runpy.run_path(f"{folder}/{name}", run_name="__main__")
"""


def run_in_turn(maya_run: MayaRun, *programs: str) -> Trace:
    """Programs that take two steps, one after the other in one process."""
    run = maya_run(RUN_IN_TURN, script_arguments=[str(EXAMPLES), *programs])
    assert run.exit_code == 0, run.output
    assert "is not emulated" not in run.stderr
    assert len(losses(run.stdout)) == 2 * len(programs)
    trace = read(run.trace)
    assert trace.complete, trace.problem
    return trace


@pytest.fixture(scope="module")
def attention(maya_run_once: MayaRun) -> Trace:
    """The GPT with each kind of attention. What one kind launches, no other does."""
    return run_in_turn(
        maya_run_once, *(f"{GPT} --attention {kind}" for kind in ("flash", "efficient", "cudnn", "math"))
    )


def test_gpt_with_flash_attention(attention: Trace) -> None:
    assert len(kernels(attention, "flash_fwd_kernel")) == 2 * 2  # layers, steps
    assert len(kernels(attention, "flash_bwd_dq_dk_dv_loop")) == 2 * 2
    assert all("bfloat16" in name for name in kernels(attention, "flash_fwd_kernel"))


def test_gpt_with_memory_efficient_attention(attention: Trace) -> None:
    assert len(kernels(attention, "fmha_cutlassF_bf16")) == 2 * 2
    assert len(kernels(attention, "fmha_cutlassB_bf16")) == 2 * 2


def test_gpt_with_cudnn_attention(attention: Trace) -> None:
    forward = cudnn_operations(attention, "attention_forward")
    assert len(forward) == len(cudnn_operations(attention, "attention_backward")) == 2 * 2
    expected = {"type": "bf16", "batch": 8, "heads": 4, "sequence_q": 128, "head_size_qk": 64, "causal": True}
    assert forward[0].items() >= expected.items()


def test_gpt_with_math_attention(attention: Trace) -> None:
    products = [call for call in calls(attention, "cublas") if call["batch"] == 8 * 4]
    assert len(products) == 6 * 2 * 2  # two forward, four backward, for each layer and step


def test_gpt_in_half_precision_with_a_gradient_scaler(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, f"{GPT} --dtype float16")
    assert re.findall(r"scale (\S+)", run.stdout) == ["65536", "65536"]
    assert {"aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"} <= op_names(trace)
    assert {call["a_type"] for call in calls(trace, "cublas")} == {"fp16"}


def test_gpt_with_activation_checkpointing(maya_run: MayaRun) -> None:
    plain_run, plain = run_program(maya_run, f"{GPT} --attention flash --batch 32 --vocabulary 1024")
    run, trace = run_program(maya_run, f"{GPT} --attention flash --batch 32 --vocabulary 1024 --checkpoint")
    assert len(kernels(trace, "flash_fwd_kernel")) == 2 * len(kernels(plain, "flash_fwd_kernel"))
    assert len(kernels(trace, "flash_bwd_dq_dk_dv_loop")) == len(kernels(plain, "flash_bwd_dq_dk_dv_loop"))
    assert max_memory(run) < max_memory(plain_run)


def max_memory(run: ScriptRun) -> float:
    return max(float(memory) for memory in re.findall(r"max memory (\S+) GiB", run.stdout))


COMPILED = """
    import torch
    from torch import nn

    layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64), nn.Linear(64, 8)
    model = torch.compile(nn.Sequential(*layers).cuda())
    for step in range(2):
        loss = model(torch.ones(16, 64, device="cuda")).square().mean()
        loss.backward()
        print(f"step {step}  loss {loss.item():.4f}")
"""


def assert_is_compiled(run: ScriptRun, folder: Path) -> None:
    """Inductor, Triton and ptxas ran, and their kernels were launched, none of the eager ones."""
    assert run.exit_code == 0, run.output
    assert "is not emulated" not in run.stderr
    assert len(losses(run.stdout)) == 2
    trace = read(run.trace)
    assert kernels(trace, "triton_poi_fused_gelu")
    assert kernels(trace, "native_layer_norm_backward")
    assert list((folder / "triton").rglob("triton_*.cubin"))
    assert not kernels(trace, "vectorized_layer_norm_kernel")


def empty_caches(folder: Path) -> dict[str, str]:
    """Folders of its own for what a program compiles, so that it does."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


@pytest.mark.slow  # test_compiled_ranks.py compiles a model as well
def test_a_compiled_model(maya_run: MayaRun, tmp_path: Path) -> None:
    assert_is_compiled(maya_run(COMPILED, environment=empty_caches(tmp_path)), tmp_path)


@pytest.mark.slow  # some thirty kernels
def test_gpt_compiled(maya_run: MayaRun, tmp_path: Path) -> None:
    small = "gpt.py --layers 1 --hidden 64 --heads 2 --sequence 64 --batch 2 --vocabulary 256 --steps 2"
    run, _ = run_program(maya_run, f"{small} --compile", environment=empty_caches(tmp_path))
    assert_is_compiled(run, tmp_path)


def test_gpt_under_the_profiler(maya_run: MayaRun, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    run, _ = run_program(maya_run, f"{GPT} --profile {profile}")
    assert f"profile in {profile}" in run.stdout
    names = {event.get("name") for event in json.loads(profile.read_text(encoding="utf-8"))["traceEvents"]}
    assert {"aten::linear", "aten::scaled_dot_product_attention", "Optimizer.step#AdamW.step"} <= names


def test_resnet_read_by_worker_processes(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, f"{RESNET} --workers 2")
    assert len(losses(run.stdout)) == 2
    assert "predicted 8 images" in run.stdout
    forward = cudnn_operations(trace, "convolution_forward")
    assert len(forward) == 13 * 3  # convolutions; steps, and the prediction
    assert forward[0]["x"] == {"type": "fp32", "dims": [8, 3, 64, 64], "strides": [3 * 64 * 64, 64 * 64, 64, 1]}
    assert len(cudnn_operations(trace, "convolution_backward_filter")) == 13 * 2
    assert len(calls(trace, "cudnnBatchNormalizationForwardTraining")) == 13 * 2
    assert len(calls(trace, "cudnnBatchNormalizationBackward")) == 13 * 2
    assert len(calls(trace, "cudnnBatchNormalizationForwardInference")) == 13


def test_resnet_with_channels_last(maya_run: MayaRun) -> None:
    _, trace = run_program(maya_run, f"{RESNET} --workers 0 --channels-last")
    for operation in cudnn_operations(trace, "convolution_forward"):
        assert operation["x"]["strides"][1] == operation["y"]["strides"][1] == 1


@pytest.fixture(scope="module")
def recurrent(maya_run_once: MayaRun) -> Trace:
    program = "lstm.py --hidden 256 --sequence 64 --steps 2"
    return run_in_turn(maya_run_once, program, f"{program} --packed")


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_lstm(recurrent: Trace, packed: bool) -> None:
    forward = [call for call in calls(recurrent, "cudnnRNNForward") if call["packed"] == packed]
    expected = {"cell": "lstm", "layers": 2, "batch": 32, "hidden_size": 256, "packed": packed, "dropout": 0.1}
    assert [call.items() >= expected.items() for call in forward] == [True, True]
    assert all((call["tokens"] < 32 * 64) == packed for call in forward)
    for backward in ("cudnnRNNBackwardData", "cudnnRNNBackwardWeights"):
        assert [call["packed"] for call in calls(recurrent, backward)].count(packed) == 2


def test_vision_transformer(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, "vit.py --layers 2 --hidden 192 --heads 3 --steps 2")
    assert len(losses(run.stdout)) == 2
    (patches, _) = cudnn_operations(trace, "convolution_forward")
    assert patches["w"]["dims"] == [192, 3, 16, 16]
    assert patches["x"]["type"] == "bf16"
    assert "aten::_foreach_addcdiv_" in op_names(trace)  # AdamW, neither fused nor one parameter at a time


def test_a_step_as_one_cuda_graph(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, "cuda_graph.py --steps 4")
    assert len(losses(run.stdout)) == 4
    assert_graphs_are_followed_by_their_records(trace, graphs=1, launches=4)


def test_graphed_callables(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, "cuda_graph.py --steps 4 --graph callables")
    assert len(losses(run.stdout)) == 4
    assert_graphs_are_followed_by_their_records(trace, graphs=2, launches=8)  # forward and backward


def assert_graphs_are_followed_by_their_records(trace: Trace, graphs: int, launches: int) -> None:
    records = trace.records
    at = np.flatnonzero(records["kind"] == RecordKind.GRAPH_LAUNCH)
    assert len(at) == launches
    assert len(set(records["value"][at].tolist())) == graphs
    from_graphs = 0
    for position in at:
        count = trace.signature(records["signature"][position])["records"]
        following = records[position + 1 : position + 1 + count]
        assert (following["flags"] & Flag.FROM_GRAPH != 0).all()
        assert {int(RecordKind.KERNEL), int(RecordKind.LIBRARY)} <= set(following["kind"].tolist())
        from_graphs += count
    assert from_graphs == np.count_nonzero(records["flags"] & Flag.FROM_GRAPH)


@pytest.fixture(scope="module")
def low_precision(maya_run_once: MayaRun) -> list[tuple[str, str, str]]:
    """Types of the operands and the result of every product; fp8 and int8, in turn."""
    trace = run_in_turn(maya_run_once, "low_precision.py --steps 2", "low_precision.py --format int8 --steps 2")
    return [(call["a_type"], call["b_type"], call["d_type"]) for call in calls(trace, "cublasLtMatmul")]


def test_fp8_matmuls(low_precision: list[tuple[str, str, str]]) -> None:
    # cuBLAS is column-major: what the program calls the first operand is cuBLAS's second.
    assert low_precision.count(("fp8_e4m3", "fp8_e4m3", "bf16")) == 2 * 2  # forward: layers, steps
    assert low_precision.count(("fp8_e4m3", "fp8_e5m2", "bf16")) == 2 * 2 * 2  # backward: for the input and the weight


def test_int8_matmuls(low_precision: list[tuple[str, str, str]]) -> None:
    assert low_precision.count(("int8", "int8", "int32")) == 2 * 2


def test_fourier_transforms(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, "fourier.py --layers 2 --steps 2")
    assert len(losses(run.stdout)) == 2
    transforms = calls(trace, "cufft")
    directions = {(call["direction"], call["input_type"], call["output_type"]) for call in transforms}
    assert {("forward", "fp32", "complex64"), ("inverse", "complex64", "fp32")} <= directions
    assert {tuple(call["dims"]) for call in transforms} == {(128, 128)}
    assert {call["batch"] for call in transforms} == {16 * 32}


def test_matrix_factorisations(maya_run: MayaRun) -> None:
    run, trace = run_program(maya_run, "linear_algebra.py --steps 2")
    assert len(losses(run.stdout)) == 4 * 2
    solvers = {call["call"] for call in calls(trace, "cusolver")}
    for factorisation in ("potrf", "geqrf", "orgqr", "gesvd", "syev"):
        assert any(factorisation in solver for solver in solvers), (factorisation, solvers)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_matmuls(maya_run: MayaRun, layout: str) -> None:
    run, trace = run_program(maya_run, f"graph_network.py --nodes 5000 --layout {layout} --steps 2")
    assert "5000 nodes, 55000 edges" in run.stdout
    assert len(losses(run.stdout)) == 2
    products = calls(trace, "cusparseSpMM")
    assert {call["nnz"] for call in products} == {55000}
    assert len(products) == 2 * 2 * 2  # layers; forward and backward; steps


def test_monitoring(maya_run: MayaRun) -> None:
    run, _ = run_program(maya_run, "monitor.py --steps 2", "--gpu", "h200")
    title, *steps = run.stdout.splitlines()
    assert title.startswith("NVIDIA H200, driver ")
    assert len(steps) == 2
    for line in steps:
        assert re.search(r"utilization \d+%  memory \d+%  \S+ of \S+ GiB  \d+ C  \d+ of 700 W  \d+ MHz$", line), line
