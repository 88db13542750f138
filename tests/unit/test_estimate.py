"""`maya estimate`: one op from the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from maya.cli.main import main
from maya.estimators.ops import OPS


def estimate(*words: str) -> Result:
    return CliRunner().invoke(main, ["estimate", *words])


def ask(words: str) -> Result:
    return estimate(*words.split())


def test_a_gemm_is_estimated_on_two_gpus() -> None:
    result = ask("--op gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --gpu a100-80,h100")
    assert result.exit_code == 0, result.output
    described, head, a100, h100 = result.output.splitlines()
    assert described == "gemm TN bf16 m=4096 n=4096 k=4096 batch=1: 137 GFLOP, 96 MiB moved"
    assert " ".join(head.split()) == "gpu time reached of peak bound limited by origin spread note"
    assert a100.startswith("a100-80 ")
    assert h100.startswith("h100 ")
    for line in (a100, h100):
        assert " TFLOPS " in line
        assert " tensor cores " in line
        assert " model " in line
    # Of a device that nothing was measured on, it says where the efficiency is from.
    other = ask("--op gemm --m 4096 --n 4096 --k 4096 --gpu h100-pcie").output
    assert " roofline " in other
    assert "efficiency as measured on h" in other


def test_every_op_has_an_answer() -> None:
    for name, op in OPS.items():
        needed = [word for dimension in op.needs for word in (f"--{dimension.replace('_', '-')}", "64")]
        result = estimate("--op", name, *needed, "--gpu", "h100")
        assert result.exit_code == 0, (name, result.output)
        assert result.output.splitlines()[-1].startswith("h100 ")


def test_an_op_of_several_kernels_is_their_sum() -> None:
    question = "--op cross_entropy --rows 8K --columns 32000 --dtype fp32 --backward --gpu h100"
    rows = ask(question).output.splitlines()[4:]
    assert [row.split()[0] for row in rows] == ["fill", "backward", "log_softmax_backward_in_passes", "h100"]
    milliseconds = [float(row.split()[1]) / (1e3 if " us " in row[:45] else 1) for row in rows]
    assert sum(milliseconds[:3]) == pytest.approx(milliseconds[3], rel=1e-2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--op gem --gpu h100", 'there is no op "gem" (did you mean gemm?); there are: gemm, attention'),
        (
            "--op gemm --m 8 --n 8 --gpu h100",
            "gemm needs --k; write: maya estimate --op gemm --m N --n N --k N [--batch",
        ),
        (
            "--op norm --rows 8 --columns 8 --m 3 --gpu h100",
            "norm takes no --m; write: maya estimate --op norm --rows N",
        ),
        ("--op gemm --m 8 --n 8 --k 0 --gpu h100", "--k is 0; give at least 1"),
        ("--op gemm --m 8 --n 8 --k 8 --gpu h10", 'unknown GPU "h10" (did you mean h100'),
        ("--op gemm --m 8 --n 8 --k 8", "name a GPU: --gpu h100"),
        ("--op gemm --m 8 --n 8 --k 8 --dtype b16 --gpu h100", 'unknown dtype "b16" (did you mean bf16'),
        ("--op gemm --m 8 --n 8 --k 8 --layout TM --gpu h100", 'unknown --layout "TM"; one of: TN, NN'),
        ("--gpu h100", "give --op gemm"),
        (f"--trace {__file__}", "is not a trace of Maya"),
        (f"--trace {__file__} --m 3", "a trace has its own shapes; leave out --m"),
        (f"--op gemm --m 8 --n 8 --k 8 --gpu h100 --pack {__file__}", "not a pack of learned kernel times"),
    ],
)
def test_questions_without_an_answer_are_refused(words: str, expected: str) -> None:
    result = ask(words)
    assert result.exit_code != 0
    assert expected in result.output
    assert "Traceback" not in result.output
