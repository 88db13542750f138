"""The trace of a real program: all of its matmuls, an op behind every kernel, nothing lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.script_run import MayaRun, ScriptRun

from maya.trace import RecordKind, Trace, read
from maya.trace.flops import gemm_flops

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "gpt.py"
# As many sizes as possible are different, so that no GEMM can stand in for another.
LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH, VOCABULARY, STEPS = 3, 192, 6, 160, 4, 1009, 2
ARGUMENTS = [
    *("--layers", str(LAYERS), "--hidden", str(HIDDEN), "--heads", str(HEADS), "--sequence", str(SEQUENCE)),
    *("--batch", str(BATCH), "--vocabulary", str(VOCABULARY), "--steps", str(STEPS)),
]


def _example() -> str:
    return EXAMPLE.read_text(encoding="utf-8")


def _linear_flops() -> int:
    """Of a step: each weight takes part in one GEMM forward and two backward."""
    weights = LAYERS * (3 + 1 + 4 + 4) * HIDDEN**2 + VOCABULARY * HIDDEN
    return 3 * 2 * BATCH * SEQUENCE * weights


def _attention_flops() -> int:
    """Of a step, where attention is written as GEMMs: scores and weighted values, each with two in backward."""
    return LAYERS * 3 * 2 * (2 * BATCH * SEQUENCE**2 * HIDDEN)


def _signatures(trace: Trace, kind: RecordKind) -> list[dict[str, Any]]:
    return [trace.signature(number) for number in trace.select(kind)["signature"].tolist()]


def _op_names(trace: Trace, records: np.ndarray[Any, Any]) -> list[str]:
    names = dict(zip(trace.ops["op"].tolist(), trace.ops["name"].tolist(), strict=True))
    return [names.get(number, "") for number in records["op"].tolist()]


def test_every_matmul_of_a_gpt_is_recorded(maya_run: MayaRun) -> None:
    run = maya_run(_example(), script_arguments=ARGUMENTS)
    assert run.exit_code == 0, run.output
    trace = read(run.trace)
    assert gemm_flops(trace).sum() == STEPS * _linear_flops()

    # every launch came from an op, and the attention that is no GEMM is there as what it is
    launches = trace.select(RecordKind.KERNEL, RecordKind.LIBRARY, RecordKind.MEMSET)
    nameless = [trace.signature(record["signature"]) for record in launches if trace.op_of(record) is None]
    assert nameless == []
    launched = Counter(_op_names(trace, launches))
    forward = sum(times for op, times in launched.items() if "attention" in op and "backward" not in op)
    backward = sum(times for op, times in launched.items() if "attention" in op and "backward" in op)
    assert forward >= LAYERS * STEPS
    assert backward >= LAYERS * STEPS
    assert launched["aten::_fused_adamw_"] >= STEPS
    assert Counter(trace.ops["name"].tolist())["aten::embedding"] == 2 * STEPS
    # a block is freed once, after it was allocated
    allocated, freed = 0, set()
    for record in trace.records:
        allocated += record["kind"] == RecordKind.BLOCK_ALLOC
        if record["kind"] == RecordKind.BLOCK_FREE:
            assert 1 <= record["value"] <= allocated
            assert record["value"] not in freed
            freed.add(int(record["value"]))


def test_every_matmul_of_handwritten_attention_is_recorded(maya_run: MayaRun) -> None:
    by_hand = _example().replace(
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "y = (q @ k.transpose(-2, -1)).softmax(-1) @ v",
    )
    run = maya_run(by_hand, script_arguments=ARGUMENTS)
    assert run.exit_code == 0, run.output
    trace = read(run.trace)
    assert gemm_flops(trace).sum() == STEPS * (_linear_flops() + _attention_flops())
    batches = {signature.get("batch", 1) for signature in _signatures(trace, RecordKind.LIBRARY)}
    assert batches == {1, BATCH * HEADS}


OPS = """
    import torch

    layer = torch.nn.Linear(96, 80).cuda()
    x = torch.randn(64, 96, device="cuda", requires_grad=True)
    y = torch.tanh(layer(x))
    half = y.to(torch.bfloat16)
    with torch.profiler.record_function("the interesting part"):
        z = (half.t()[:, ::2] * 3).sum()
    z.backward()
    total = torch._foreach_add([x.detach(), y.detach()], [x.detach(), y.detach()], alpha=2)
    picked = y.detach()[torch.tensor([3, 1], device="cuda")]
    torch.cat([x.detach(), x.detach()], dim=1)
"""


@pytest.fixture(scope="module")
def ops_trace(maya_run_once: MayaRun) -> Trace:
    run = maya_run_once(OPS)
    assert run.exit_code == 0, run.output
    return read(run.trace)


def _op(trace: Trace, name: str) -> np.void:
    found: np.void
    (found,) = trace.ops[trace.ops["name"] == name]
    return found


def _tensor(shape: list[int], dtype: str, strides: list[int]) -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "strides": strides}


X = _tensor([64, 96], "float32", [96, 1])
Y = _tensor([64, 80], "float32", [80, 1])


def test_every_op_has_a_number_of_its_own(ops_trace: Trace) -> None:
    assert len(np.unique(ops_trace.ops["op"])) == len(ops_trace.ops)


def test_inputs_of_ops_are_recorded_with_shapes_and_strides(ops_trace: Trace) -> None:
    transposed = _tensor([96, 80], "float32", [1, 96])
    assert _op(ops_trace, "aten::addmm")["inputs"][:3] == [_tensor([80], "float32", [1]), X, transposed]
    assert _op(ops_trace, "aten::tanh")["inputs"] == [Y]
    forward, backward = ops_trace.ops[ops_trace.ops["name"] == "aten::mul"]
    assert forward["inputs"][0] == _tensor([80, 32], "bfloat16", [1, 160])
    assert backward["inputs"][0] == _tensor([80, 32], "bfloat16", [0, 0])


def test_lists_of_inputs_are_recorded(ops_trace: Trace) -> None:
    assert _op(ops_trace, "aten::_foreach_add")["inputs"][:2] == [[X, Y], [X, Y]]
    assert _op(ops_trace, "aten::index")["inputs"] == [Y, [_tensor([2], "int64", [1])]]
    assert _op(ops_trace, "aten::cat")["inputs"] == [[X, X], 1]


def test_ops_nest_in_annotations(ops_trace: Trace) -> None:
    part = _op(ops_trace, "the interesting part")
    forward, _ = ops_trace.ops[ops_trace.ops["name"] == "aten::mul"]
    assert part["kind"] == RecordKind.ANNOTATION
    assert forward["parent"] == part["op"]
    assert part["start_ns"] <= forward["start_ns"]
    assert forward["duration_ns"] <= part["duration_ns"]


def test_ops_nest_in_nodes_of_the_backward_pass(ops_trace: Trace) -> None:
    _, backward = ops_trace.ops[ops_trace.ops["name"] == "aten::mul"]
    assert backward["parent"] == _op(ops_trace, "MulBackward0")["op"]


@pytest.mark.parametrize(
    ("forward", "node", "backward"),
    [
        ("aten::addmm", "AddmmBackward0", "aten::mm"),
        ("aten::tanh", "TanhBackward0", "aten::tanh_backward"),
    ],
)
def test_a_backward_op_has_the_number_of_its_forward_op(
    ops_trace: Trace, forward: str, node: str, backward: str
) -> None:
    sequence = _op(ops_trace, forward)["sequence"]
    assert sequence >= 0
    assert _op(ops_trace, node)["sequence"] == sequence
    inner = ops_trace.ops[ops_trace.ops["name"] == backward]
    assert len(inner) > 0
    assert (inner["sequence"] == sequence).all()
    assert (inner["thread"] != _op(ops_trace, forward)["thread"]).all()


def test_a_kernel_is_recorded_with_its_op_and_grid(ops_trace: Trace) -> None:
    tanh = _op(ops_trace, "aten::tanh")
    (kernel,) = ops_trace.kernels()[ops_trace.kernels()["op"] == tanh["op"]]
    signature = ops_trace.signature(kernel["signature"])
    assert "tanh" in signature["kernel"]
    assert np.prod(signature["grid"]) * np.prod(signature["block"]) <= 64 * 80
    assert kernel["thread"] == tanh["thread"]


def test_nodes_of_backward_nest_and_stay_visible_to_the_profiler(maya_run: MayaRun) -> None:
    """A checkpointed block evaluates nodes inside a node; with a profiler, torch announces nodes as it always does."""
    run = maya_run(
        """
        import torch
        from torch.profiler import profile
        from torch.utils.checkpoint import checkpoint

        x = torch.randn(200, 200, device="cuda", requires_grad=True)

        def step():
            checkpoint(lambda t: torch.tanh(t) * 3, x, use_reentrant=True).sum().backward()

        step()
        with profile() as profiler:
            step()
        names = [event.name for event in profiler.events()]
        print(names.count("autograd::engine::evaluate_function: TanhBackward0"))
        step()
        """
    )
    assert run.exit_code == 0, run.stderr
    assert run.stdout == "1\n"
    ops = read(run.trace).ops
    outer = ops[ops["name"] == "CheckpointFunctionBackward"]
    inner = ops[ops["name"] == "TanhBackward0"]
    gradients = ops[ops["name"] == "aten::tanh_backward"]
    assert len(outer) == len(inner) == len(gradients) == 3
    assert inner["parent"].tolist() == outer["op"].tolist()
    assert gradients["parent"].tolist() == inner["op"].tolist()
    assert gradients["sequence"].tolist() == inner["sequence"].tolist()
    assert (outer["start_ns"] + outer["duration_ns"] >= inner["start_ns"] + inner["duration_ns"]).all()
    # what comes after a node is no longer in it
    losses = ops[ops["name"] == "aten::sum"]
    assert np.count_nonzero(losses["parent"] == 0) == 3
    assert set(losses["parent"]) <= {0, *losses["op"]}


MANY_LAUNCHES = """
    import sys, threading
    import torch

    count = int(sys.argv[1])
    torch.cuda.init()
    totals = []

    def launch():
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(count):
                x.add_(1)
            totals.append(x.item())

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [count, count], totals
"""


def _check_nothing_lost(run: ScriptRun, count: int) -> None:
    assert run.exit_code == 0, run.output
    trace = read(run.trace)
    assert trace.complete, trace.problem
    ops = trace.ops
    added = ops[ops["name"] == "aten::add_"]
    assert len(added) == 2 * count
    kernels = trace.kernels()[np.isin(trace.kernels()["op"], added["op"])]
    assert len(kernels) == 2 * count
    assert len(np.unique(kernels["op"])) == 2 * count, "one for each op"
    threads, times = np.unique(kernels["thread"], return_counts=True)
    assert times.tolist() == [count, count]
    order = np.argsort(kernels["op"])
    assert (kernels["thread"][order] == added["thread"]).all()
    for thread in threads:
        mine = kernels[kernels["thread"] == thread]
        assert len(np.unique(mine["stream"])) == 1
        assert (np.diff(mine["op"].astype(np.int64)) > 0).all(), "in the order in which the thread launched them"
    times_of_work = trace.records["host_ns"][~np.isin(trace.records["kind"], [RecordKind.OP, RecordKind.ANNOTATION])]
    assert (np.diff(times_of_work.astype(np.int64)) >= 0).all()


def test_nothing_is_lost_of_40_000_launches_from_two_threads(maya_run: MayaRun) -> None:
    _check_nothing_lost(maya_run(MANY_LAUNCHES, script_arguments=["20000"]), 20_000)


@pytest.mark.slow
def test_nothing_is_lost_of_a_million_launches_from_two_threads(maya_run: MayaRun) -> None:
    _check_nothing_lost(maya_run(MANY_LAUNCHES, script_arguments=["500000"], timeout=600), 500_000)
