"""Graphs with dynamic shapes are traced with tensors whose sizes are symbols: the observer leaves them alone."""

from __future__ import annotations

import pytest
from helpers.checks import Checks, Outcomes
from helpers.script_run import MayaRun, ScriptRun

DYNAMIC = Checks(
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def _both(function, *arguments):
        eager = function(*arguments)
        compiled = torch.compile(function, dynamic=True, backend="aot_eager")(*arguments)
        assert eager.tolist() == compiled.tolist(), (eager, compiled)

    def a_matrix_product_is_traced():
        weight = torch.randn(8, 4, device="cuda", requires_grad=True)
        product = torch.compile(lambda x: (x @ weight).relu().sum(), dynamic=True, backend="aot_eager")
        for rows in (4, 6, 7):
            product(torch.randn(rows, 8, device="cuda")).backward()
        assert weight.grad is not None

    def a_dimension_is_marked_dynamic():
        x = torch.ones(5, 8, device="cuda")
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.compile(lambda x: (x * 2).sum(), backend="aot_eager")(x).item() == 80

    def bytes_are_concatenated():
        _both(lambda x: torch.cat([x, x]), torch.arange(5, dtype=torch.uint8, device="cuda"))

    def counts_are_traced():
        _both(lambda x: torch.histc(x, 4, 0, 3), torch.arange(4.0, device="cuda"))

    def views_and_writes_are_traced():
        def write(x):
            x = x.clone()
            x[1:].t().add_(1)
            return x
        _both(write, torch.zeros(3, 4, device="cuda"))

    def a_symbolic_graph_is_made():
        graph = make_fx(lambda x: (x @ x.t()).softmax(-1), tracing_mode="symbolic")(torch.randn(3, 5, device="cuda"))
        assert graph(torch.randn(7, 2, device="cuda")).shape == (7, 7)

    def fake_tensors_have_symbolic_sizes():
        with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False) as mode:
            x = mode.from_tensor(torch.empty(3, 5, device="cuda"))
            assert torch.nn.functional.linear(x, x).shape[0] == 3
    """
)


@pytest.fixture(scope="module")
def run(maya_run_once: MayaRun) -> tuple[Outcomes, list[ScriptRun]]:
    runs: list[ScriptRun] = []

    def keep(*arguments: object, **options: object) -> ScriptRun:
        runs.append(maya_run_once(*arguments, **options))
        return runs[-1]

    return DYNAMIC.run(keep), runs


@pytest.mark.parametrize("check", DYNAMIC.names)
def test_dynamic_shapes(run: tuple[Outcomes, list[ScriptRun]], check: str) -> None:
    run[0].require(check)


def test_every_op_is_observed(run: tuple[Outcomes, list[ScriptRun]]) -> None:
    assert "could not be observed" not in run[1][0].output
