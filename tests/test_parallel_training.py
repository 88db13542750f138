"""A small GPT trained in parallel, everything computed: the losses are those of one process on the CPU.

So collectives, streams and values are right together: a sum that misses a rank, a bucket read before it was written, or
a shard that went to the wrong place would show in the second loss.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from parallel_launch import maya_torchrun, stock_environment

from rank_runtime.build import Build

DRIVER = Path(__file__).parent / "parallel_training_driver.py"
LAYERS = "8"  # a stage of a pipeline has one at least
# The schedules with two stages per rank find layers for both on up to 4 ranks.
WAYS = {
    2: ["ddp", "fsdp2", "tp", "tp_sequence", "pp", "pp_interleaved", "pp_zero_bubble"],
    4: ["ddp", "fsdp2", "tp", "tp_sequence", "pp", "pp_interleaved", "pp_zero_bubble"],
    8: ["ddp", "fsdp2", "tp", "tp_sequence", "pp"],
}

Losses = dict[str, list[float]]  # by way


def losses(output: str) -> Losses:
    lines = (line.partition(": ") for line in output.splitlines())
    return {way: [float(word) for word in words.split()] for way, _, words in lines}


@pytest.fixture(scope="module")
def expected(build: Build) -> list[float]:
    """The losses of one process."""
    ended = subprocess.run(
        [sys.executable, str(DRIVER), "alone", "--layers", LAYERS, "--device", "cpu"],
        env=stock_environment(build),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return losses(ended.stdout)["alone"]


@pytest.fixture(scope="module")
def found(build: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Losses]:
    """The losses under Maya, by number of ranks: filled by the first test of each, which runs all ways at once."""
    return {}


@pytest.mark.parametrize(("ranks", "way"), [(ranks, way) for ranks, ways in WAYS.items() for way in ways])
def test_losses_are_those_of_one_process(
    ranks: int, way: str, expected: list[float], found: dict[int, Losses], tmp_path: Path
) -> None:
    if ranks not in found:
        found[ranks] = {}
        run = maya_torchrun(
            tmp_path, ranks, DRIVER, *WAYS[ranks], "--layers", LAYERS, options=("--compute", "all", "--no-trace")
        )
        assert run.exit_code == 0, run.output
        assert "cannot be computed" not in run.stderr
        found[ranks] = losses(run.stdout)
    assert expected[-1] < expected[0] - 1
    assert found[ranks].get(way) == pytest.approx(expected, rel=1e-5)
