"""Programs that steer by what ranks tell each other print the same on virtual GPUs as on the CPU.

By torch's own torchrun their ranks talk over Gloo and compute on the CPU; by maya-torchrun, over NCCL on virtual GPUs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.parallel_launch import EXAMPLES, ParallelRun, maya_torchrun, stock_torchrun

from rank_runtime.build import Build

DRIVER = Path(__file__).parent / "parallel_control_flow_driver.py"
PROGRAMS = [
    node.name
    for node in ast.parse(DRIVER.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name not in ("say", "main")
]
RANKS = 5  # neither even nor a power of two: nothing may rest on that


@dataclass(frozen=True)
class Both:
    stock: ParallelRun
    maya: ParallelRun


@pytest.fixture(scope="module")
def both(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """All programs, one after the other in the same ranks, by both launchers."""
    folder = tmp_path_factory.mktemp("control_flow")
    by_stock, by_maya = folder / "stock", folder / "maya"
    return Both(
        stock_torchrun(build, by_stock, RANKS, DRIVER, "order.txt", options=("--redirects", "3", "--log-dir", "logs")),
        maya_torchrun(by_maya, RANKS, DRIVER, "order.txt", options=("--redirects", "3", "--log-dir", "logs")),
    )


def part_of(output: str, program: str) -> str:
    """What one program printed; to the end, if it was the last to run."""
    _, _, rest = output.partition(f"PROGRAM {program}\n")
    return rest.partition("PROGRAM ")[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_the_same_as_on_the_cpu(program: str, both: Both) -> None:
    assert both.stock.exit_code == 0, both.stock.output
    assert both.maya.exit_code == 0, both.maya.output
    expected = [part_of(both.stock.of_rank(rank), program) for rank in range(RANKS)]
    assert all(expected)
    assert [part_of(both.maya.of_rank(rank), program) for rank in range(RANKS)] == expected


@pytest.mark.parametrize("ranks", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_the_example_of_collectives_prints_the_same_as_on_the_cpu(ranks: int, build: Build, tmp_path: Path) -> None:
    script = EXAMPLES / "mixed_groups.py"
    stock = stock_torchrun(build, tmp_path / "stock", ranks, script, "--device", "cpu")
    maya = maya_torchrun(tmp_path / "maya", ranks, script)
    assert stock.exit_code == 0, stock.output
    assert maya.exit_code == 0, maya.output
    assert len(stock.stdout.splitlines()) > 30
    assert maya.stdout == stock.stdout
