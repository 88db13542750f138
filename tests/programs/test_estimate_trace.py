"""`maya estimate --trace`: the kernels of a recorded program."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result
from helpers.script_run import MayaRun

from maya.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "llama_layer.py"


def estimate(*words: str) -> Result:
    return CliRunner().invoke(main, ["estimate", *words])


def test_a_recorded_llama_layer_is_estimated_kernel_by_kernel(maya_run: MayaRun) -> None:
    """The example in small, on the GPU of the run and on others."""
    sizes = ["--hidden", "512", "--heads", "8", "--kv-heads", "2", "--intermediate", "1024", "--sequence", "1024"]
    run = maya_run(EXAMPLE.read_text(encoding="utf-8"), "--gpu", "h100", script_arguments=sizes)
    assert run.exit_code == 0, run.output
    result = estimate("--trace", str(run.trace), "--top", "3")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "recorded on NVIDIA H100 80GB HBM3" in lines[0]
    assert lines[2].split() == ["class", "launches", "distinct", "h100", "share"]
    # Seven weights: a product forward, two backward.
    assert next(line for line in lines if line.startswith("gemm ")).split()[1] == "21"
    assert next(line for line in lines if line.startswith("attention ")).split()[1] == "2"
    assert len(lines) - lines.index(next(line for line in lines if line.startswith("times "))) == 4

    together = estimate("--trace", str(run.trace), "--top", "0", "--gpu", "h100", "--gpu", "a100-80,b200").output
    [total] = [line for line in together.splitlines() if line.startswith("total ")]
    h100, a100, b200 = (float(word) for word in total.split()[3::2])
    assert a100 > h100 > b200

    # The weights were made before the step.
    assert "random " in together
    step = estimate("--trace", str(run.trace), "--within", "step", "--top", "0").output
    assert "random " not in step
    assert "gemm " in step
    wrong = estimate("--trace", str(run.trace), "--within", "stp")
    assert 'no annotation "stp" (did you mean step?)' in wrong.output
